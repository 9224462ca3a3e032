// The timeline: bytes of live blocks over time, stacked by group; the line above is what is
// reserved. A pixel column shows its highest moment, paler above the lowest.

class TimelineView {
  constructor(run, canvas) {
    this.run = run;
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false, willReadFrequently: true }); // plain memory
    this.regroup();
  }

  regroup() {
    this.levels = new Levels(this.run);
    this.highest = Math.max(1, this.levels.peakBytes, this.levels.reserved.highest);
  }

  setTheme({ ground, text, line, red }) {
    this.theme = { ground, text, line, red };
    this.ground = parseColor(ground);
    const pack = ([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red;
    const pale = (color) => color.map((part, i) => Math.round(part + 0.45 * (this.ground[i] - part)));
    const colors = this.run.grouping.groups.map((group) => parseColor(group.color));
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
    const { tops, lows } = this._spaceFor(width, numGroups);
    const points = this._pointsOfColumns(view, axis, width);
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
    this._drawReserved(points, perByte);
    drawCapacity(this.context, { width, height, ratio: pixelRatio() }, this.topBytes, this.run.header.capacity, this.theme);
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

  /** The first point of each pixel column, and of the one after the last; -1 outside the run. */
  _pointsOfColumns(view, axis, width) {
    const { run } = this;
    const [low, high] = extentOf(run, axis);
    const step = (view.x1 - view.x0) / width;
    const points = this.space.points;
    for (let column = 0; column <= width; column++) {
      const x = view.x0 + column * step;
      const isOutside = x + step < low || x > high;
      const event = axis === "seconds" ? run.eventAtSeconds(x) : Math.floor(x);
      points[column] = isOutside ? -1 : clamp(event + 1, 0, run.numEvents);
    }
    return points;
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

/** Where a run begins and ends on an axis. */
function extentOf(run, axis) {
  return axis === "seconds" ? [0, run.seconds(run.numEvents)] : [-1, Math.max(run.numEvents, 0)];
}
