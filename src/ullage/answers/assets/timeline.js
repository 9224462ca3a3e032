// The timeline: bytes over time, stacked by group; the line above is what is reserved. A pixel
// column shows its highest moment, paler above the lowest.
//
// It draws levels: the `colors` of their groups, paler where `isPale`; `pointsOf` a view, the point
// at which each pixel column begins, and the one after the last (-1: none); `readHighest` of a range
// of points; the `reserved` bytes from each event on, or null; and the `highestBytes` of all.

class Timeline {
  constructor(canvas, capacity) {
    Object.assign(this, { canvas, capacity });
    this.context = canvas.getContext("2d", { alpha: false, willReadFrequently: true }); // plain memory
  }

  show(levels) {
    this.levels = levels;
    this.ownTopBytes = scaleTop(Math.max(1, levels.highestBytes), this.capacity);
    this.topBytes = this.ownTopBytes;
  }

  setTheme({ ground, text, line, red }) {
    this.theme = { ground, text, line, red };
    this.ground = parseColor(ground);
    const pack = ([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red;
    const pale = (color) => color.map((part, i) => Math.round(part + 0.45 * (this.ground[i] - part)));
    const owners = this.levels.colors.map(parseColor);
    const colors = this.levels.isPale ? owners.map(pale) : owners;
    this.inks = Int32Array.from(colors, pack);
    this.paleInks = Int32Array.from(colors.map(pale), pack);
    this.groundInk = pack(this.ground);
  }

  resize(size) {
    if (!fitCanvas(this.canvas, size) && this.image) return;
    this.image = this.context.createImageData(this.canvas.width, this.canvas.height);
    this.pixels = new Int32Array(this.image.data.buffer);
  }

  /** Draws a view of an axis. */
  draw(view, axis) {
    const { width, height } = this.canvas;
    const { levels, pixels, inks, paleInks, groundInk } = this;
    const numGroups = levels.numGroups;
    const { tops, lows, points } = this._spaceFor(width, numGroups);
    levels.pointsOf(view, axis, width, points);
    const perByte = height / this.topBytes;
    for (let column = 0; column < width; column++) {
      const begin = points[column];
      if (begin < 0) continue;
      const end = Math.max(begin, points[column + 1]) + 1;
      const lowest = levels.readHighest(begin, end, tops, column * numGroups);
      lows[column] = Math.round(lowest * perByte);
      let sum = 0;
      for (let g = 0, i = column * numGroups; g < numGroups; g++, i++) {
        sum += tops[i];
        tops[i] = Math.round(sum * perByte);
      }
    }
    pixels.fill(groundInk);
    // Upward in each column: its rows stay in the processor's nearest cache for the next one.
    for (let column = 0; column < width; column++) {
      let at = (height - 1) * width + column;
      let row = 0;
      for (let g = 0, i = column * numGroups; g < numGroups; g++, i++) {
        const full = Math.min(tops[i], lows[column]);
        for (; row < full; row++, at -= width) pixels[at] = inks[g];
        for (; row < tops[i]; row++, at -= width) pixels[at] = paleInks[g];
      }
    }
    this.context.putImageData(this.image, 0, 0);
    if (levels.reserved) this._drawReserved(points, perByte);
    drawCapacity(this.context, { width, height, ratio: pixelRatio() }, this.topBytes, this.capacity, this.theme);
  }

  /** Arrays of so many columns, kept from frame to frame. */
  _spaceFor(width, numGroups) {
    const length = width * numGroups;
    if (this.space?.tops.length !== length || this.space.lows.length !== width) {
      this.space = {
        tops: new Float64Array(length), lows: new Int32Array(width), points: new Int32Array(width + 1),
      };
    }
    this.space.tops.fill(0);
    return this.space;
  }

  _drawReserved(points, perByte) {
    const { context, canvas, levels } = this;
    const { event, bytes } = levels.reserved;
    context.strokeStyle = this.theme.text;
    context.lineWidth = pixelRatio();
    context.beginPath();
    let isDown = false;
    for (let column = 0; column < canvas.width; column++) {
      if (points[column] < 0) {
        isDown = false;
        continue;
      }
      let place = Math.max(0, lowerBound(event, points[column]) - 1);
      let highest = bytes[place];
      while (place + 1 < event.length && event[place + 1] < points[column + 1]) {
        highest = Math.max(highest, bytes[++place]);
      }
      const y = canvas.height - highest * perByte;
      if (isDown) context.lineTo(column + 0.5, y);
      else context.moveTo(column + 0.5, y);
      isDown = true;
    }
    context.stroke();
  }
}

/** Levels that hold from one moment to the next: of a step, in the order of time. `lowest` are those
 * below which nothing falls until the next, if that is not all the same. */
class StepLevels {
  constructor({ starts, allocated, lowest = allocated, reserved = null, end, colors }) {
    Object.assign(this, { starts, allocated, lowest, end, colors, numGroups: 1, isPale: true });
    this.reserved = reserved?.length ? { event: Array.from(starts.keys()), bytes: reserved } : null;
    this.highestBytes = [...allocated, ...(reserved ?? [])].reduce((a, b) => Math.max(a, b), 0);
  }

  at(x) {
    return this.allocated[Math.max(0, lowerBound(this.starts, x + 5e-10) - 1)] ?? 0;
  }

  pointsOf({ x0, x1 }, _axis, width, points) {
    for (let column = 0; column <= width; column++) {
      const x = x0 + (column * (x1 - x0)) / width;
      points[column] = x < 0 || x > this.end ? -1 : lowerBound(this.starts, x + 5e-10);
    }
  }

  readHighest(begin, end, out, place) {
    let lowest = Infinity;
    out[place] = 0;
    for (let point = begin; point < end; point++) {
      const last = Math.max(0, point - 1); // the first holds before it, too
      out[place] = Math.max(out[place], this.allocated[last] ?? 0);
      lowest = Math.min(lowest, this.lowest[last] ?? 0);
    }
    return lowest;
  }
}
