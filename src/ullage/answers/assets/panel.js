// One run over time: the timeline, the map below it on the same axis, their scales, the pointer.

const MIN_EVENTS = 8;
const OUT_OF_MEMORY_COLOR = "#d11f2a";

class Panel {
  constructor(run, { page, renderer }) {
    this.run = run;
    this.page = page;
    this.element = document.getElementById("panel").content.firstElementChild.cloneNode(true);
    const part = (name) => this.element.querySelector(`.${name}`);
    this.parts = {
      strip: part("strip"), map: part("map"), stripScale: part("strip-scale"),
      mapScale: part("map-scale"), axis: part("axis"), cursor: part("cursor"), name: part("run-name"),
    };
    this.timeline = new Timeline(this.parts.strip, run.header.capacity);
    this.timeline.show(new Levels(run));
    this.map = new MapView(run, { canvas: this.parts.map, renderer });
    this.selection = null;
    this._listen();
  }

  setTheme(theme) {
    this.theme = theme;
    this.map.setTheme(theme);
    this.timeline.setTheme(theme);
  }

  regroup() {
    this.timeline.show(new Levels(this.run));
    this.map.restyle();
    this.setTheme(this.theme);
  }

  setAxis(axis) {
    this.map.setAxis(axis);
  }

  /** Takes over the sizes of its canvases; asked for in a frame they cost a layout. */
  resize() {
    this.sizes = {};
    for (const name of ["strip", "map", "stripScale", "mapScale", "axis"]) {
      const { clientWidth: width, clientHeight: height } = this.parts[name];
      this.sizes[name] = { width, height };
    }
    this.timeline.resize(this.sizes.strip);
    this.map.resize(this.sizes.map);
    this.isStale = true;
  }

  /** Draws a frame; true if there is more to draw. */
  draw(view, axis, deadline) {
    const isMoved = !this.drawnView || this.drawnView.x0 !== view.x0 || this.drawnView.x1 !== view.x1;
    if (isMoved || this.isStale) {
      if (this.sizes.strip.height > 0) this.timeline.draw(view, axis);
      this._drawAxis(view, axis);
      this.drawnView = { ...view };
    }
    if (this.isStale) this._drawScale("stripScale", 0, this.timeline.topBytes);
    if (this.isStale) this.drawnHeights = null;
    this.isStale = false;
    if (this.sizes.map.height === 0) return false;
    this._drawHeights();
    return this.map.draw(view, { selection: this.selection, deadline });
  }

  _drawHeights() {
    const { heights } = this.map;
    if (this.drawnHeights === heights) return;
    const unit = this.run.header.unit_bytes;
    this._drawScale("mapScale", heights.y0 * unit, heights.y1 * unit);
    this.drawnHeights = heights;
  }

  _drawScale(name, low, high) {
    drawScale(clearScale(this.parts[name], this.sizes[name], this.theme), low, high, this.theme);
  }

  _drawAxis(view, axis) {
    const { context, width } = clearScale(this.parts.axis, this.sizes.axis, this.theme);
    const isWhole = axis !== "seconds";
    drawAxis(context, width, view, { theme: this.theme, isWhole, format: isWhole ? formatCount : formatSeconds });
    const mark = (event, color) => {
      const at = ((this.map.xOf(event) - view.x0) / (view.x1 - view.x0)) * width;
      context.fillStyle = color;
      context.beginPath();
      context.moveTo(at - 5, 0);
      context.lineTo(at + 5, 0);
      context.lineTo(at, 7);
      context.fill();
    };
    mark(this.run.header.peak_event, this.theme.accent);
    for (const [event] of this.run.header.out_of_memory) mark(event, OUT_OF_MEMORY_COLOR);
  }

  _listen() {
    for (const canvas of [this.parts.strip, this.parts.map]) {
      const isMap = canvas === this.parts.map;
      canvas.addEventListener("wheel", (event) => this._zoomByWheel(event, isMap), { passive: false });
      canvas.addEventListener("pointerdown", (event) => this._startDrag(event, isMap));
      canvas.addEventListener("pointermove", (event) => this._hover(event, isMap));
      canvas.addEventListener("pointerleave", () => this.page.hover(null));
      canvas.addEventListener("dblclick", () => this.page.fit());
    }
  }

  _zoomByWheel(event, isMap) {
    event.preventDefault();
    const { page } = this;
    const { width, height } = this.sizes.map;
    const amount = event.deltaMode === 1 ? 30 : 1;
    const factor = Math.exp((event.deltaY || event.deltaX) * amount * 0.0015);
    const isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (isMap && event.shiftKey) this.zoomHeights(factor, 1 - event.offsetY / height);
    else if (isSideways) page.pan((event.deltaX * amount) / width);
    else page.zoom(factor, event.offsetX / width);
  }

  /** Zooms addresses around a share of the height, from the bottom. */
  zoomHeights(factor, around = 0.5) {
    const { heights } = this.map;
    const span = heights.y1 - heights.y0;
    const limit = this.run.header.total_height * HEADROOM;
    const newSpan = clamp(span * factor, 16, limit);
    this.moveHeights(heights.y0 + around * (span - newSpan), newSpan);
  }

  panHeights(share) {
    const { y0, y1 } = this.map.heights;
    this.moveHeights(y0 + share * (y1 - y0), y1 - y0);
  }

  moveHeights(y0, span) {
    const limit = Math.max(this.run.header.total_height * HEADROOM, 1);
    const shown = Math.min(span, limit);
    const low = clamp(y0, 0, limit - shown);
    this.map.heights = { y0: low, y1: low + shown };
    this.page.invalidate();
  }

  _startDrag(event, isMap) {
    if (event.button !== 0) return;
    const canvas = event.currentTarget;
    const { width, height } = this.sizes[isMap ? "map" : "strip"];
    let [lastX, lastY, moved] = [event.clientX, event.clientY, 0];
    canvas.setPointerCapture(event.pointerId);
    const drag = new AbortController();
    const move = (next) => {
      moved += Math.abs(next.clientX - lastX) + Math.abs(next.clientY - lastY);
      if (moved > 3) {
        this.page.pan((lastX - next.clientX) / width);
        if (isMap) this.panHeights((next.clientY - lastY) / height);
      }
      [lastX, lastY] = [next.clientX, next.clientY];
    };
    const stop = (last) => {
      drag.abort();
      if (moved <= 3 && last.type === "pointerup") this._click(last, isMap);
    };
    for (const [kind, act] of [["pointermove", move], ["pointerup", stop], ["pointercancel", stop]]) {
      canvas.addEventListener(kind, act, { signal: drag.signal });
    }
  }

  _click(event, isMap) {
    const block = isMap ? this.map.pick(this.page.view, event.offsetX, event.offsetY) : null;
    if (block !== null) this.page.select(this, block);
    else this.page.showMoment(this, this._eventAt(event));
  }

  _eventAt(event) {
    const { x0, x1 } = this.page.view;
    const x = x0 + (event.offsetX / event.currentTarget.clientWidth) * (x1 - x0);
    return clamp(this.map.eventAt(x), -1, this.run.numEvents - 1);
  }

  _hover(event, isMap) {
    if (event.buttons) return;
    this.page.hover({
      panel: this, event: this._eventAt(event), share: event.offsetX / event.currentTarget.clientWidth,
      block: isMap ? this.map.pick(this.page.view, event.offsetX, event.offsetY) : null,
    });
  }
}
