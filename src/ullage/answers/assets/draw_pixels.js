// Draws rectangles into plain pixels: what draw_gl.js does, where there is no GPU to do it.

class PixelCanvas {
  constructor() {
    this.canvas = document.createElement("canvas");
    this.context = this.canvas.getContext("2d", { alpha: false, willReadFrequently: true }); // plain memory
    this.batch = 300; // between two looks at the clock
  }

  resize(width, height) {
    this.canvas.width = width;
    this.canvas.height = height;
    this.image = this.context.createImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  load({ boxes, styles }) {
    this.boxes = boxes;
    this.styles = styles;
  }

  begin(view, { ground, colors }) {
    const pack = ([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red;
    const dim = (color) => color.map((part, i) => Math.round(ground[i] + 0.18 * (part - ground[i])));
    this.view = view;
    this.inks = [colors, colors.map(dim), colors].map((inks) => Int32Array.from(inks, pack));
    const edge = (color) => color.map((part) => Math.round(part * 0.72));
    this.edges = [colors, colors.map(dim), colors].map((inks) => Int32Array.from(inks.map(edge), pack));
    this.pixels.fill(pack(ground));
  }

  draw(first, end) {
    const { boxes, styles, inks, edges, pixels, view } = this;
    const { width, height } = this.canvas;
    const scaleX = width / (view.x1 - view.x0);
    const scaleY = height / (view.y1 - view.y0);
    for (let i = first; i < end; i++) {
      let left = Math.floor((boxes[4 * i] - view.x0) * scaleX + 0.5);
      let right = Math.max(Math.floor((boxes[4 * i + 1] - view.x0) * scaleX + 0.5), left + 1);
      const y = boxes[4 * i + 2];
      let low = Math.floor((y - view.y0) * scaleY + 0.5);
      let high = Math.max(Math.floor((y + boxes[4 * i + 3] - view.y0) * scaleY + 0.5), low + 1);
      const hasEdge = right - left > 5 && high - low > 4;
      const isOpenRight = right > width;
      const isOpenLow = low < 0;
      if (left < 0) left = 0;
      if (right > width) right = width;
      if (low < 0) low = 0;
      if (high > height) high = height;
      if (left >= right || low >= high) continue;
      const ink = inks[styles[2 * i + 1]][styles[2 * i]];
      const bottom = (height - 1 - low) * width;
      if (right - left === 1) {
        for (let row = bottom, rows = high - low; rows > 0; rows--, row -= width) pixels[row + left] = ink;
        continue;
      }
      for (let row = bottom, rows = high - low; rows > 0; rows--, row -= width) {
        pixels.fill(ink, row + left, row + right);
      }
      if (!hasEdge) continue;
      const edge = edges[styles[2 * i + 1]][styles[2 * i]];
      if (!isOpenLow) pixels.fill(edge, bottom + left, bottom + right);
      if (isOpenRight) continue;
      for (let row = bottom, rows = high - low; rows > 0; rows--, row -= width) pixels[row + right - 1] = edge;
    }
  }

  finish() {
    this.context.putImageData(this.image, 0, 0);
  }
}
