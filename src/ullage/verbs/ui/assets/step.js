// The allocated bytes through one training step: forward, backward, step of the optimizer.

export class StepTimeline {
  constructor(element, reading) {
    Object.assign(this, { element, reading, passes: [], chosen: null });
    this.scale = makeElement("canvas");
    this.canvas = makeElement("canvas", { role: "slider", tabindex: 0, "aria-label": "Moments of one training step", "aria-valuemin": 0, "aria-valuenow": 0 });
    this.phases = makeElement("div", { class: "phases", "aria-hidden": "true" });
    this.cursor = makeElement("div", { class: "cursor" });
    element.append(this.phases, this.scale, this.canvas, this.cursor);
    this.canvas.addEventListener("pointermove", (event) => this._point(event));
    this.canvas.addEventListener("pointerdown", (event) => this._point(event));
    this.canvas.addEventListener("keydown", (event) => this._press(event));
    new ResizeObserver(() => this._draw()).observe(element);
    new MutationObserver(() => this._draw()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  show(found) {
    this.passes = found.timeline;
    const { passes } = this;
    this.end = passes.at(-1).end;
    this.peak = passes.reduce((best, one, index) => (one.peak_bytes > passes[best].peak_bytes ? index : best), 0);
    if (this.chosen !== null) this.chosen = Math.min(this.chosen, passes.length - 1);
    // What the GPU has for tensors.
    const around = found.terms.filter((term) => term.category === "unattributed");
    const room = found.capacity_bytes - around.reduce((sum, term) => sum + term.bytes, 0);
    this.timeline = new Timeline(this.canvas, room > 0 ? { bytes: room, text: `${found.gpu} is full` } : null);
    this.timeline.show(new StepLevels({
      starts: passes.map((one) => one.begin), allocated: passes.map((one) => one.peak_bytes),
      lowest: passes.map((one) => Math.min(one.start_bytes, one.end_bytes)), end: this.end, colors: ["#009e73"],
    }));
    this.phases.replaceChildren(...this._phases());
    this._draw();
  }

  _draw() {
    const { canvas, scale, timeline } = this;
    if (!timeline || !canvas.clientWidth) return;
    const theme = readTheme();
    timeline.setTheme(theme);
    timeline.resize({ width: canvas.clientWidth, height: canvas.clientHeight });
    timeline.draw({ x0: 0, x1: this.end });
    drawScale(clearScale(scale, { width: scale.clientWidth, height: scale.clientHeight }, theme), 0, timeline.topBytes, theme);
    this._read();
  }

  /** Where phases begin; each is named once, as micro-batches have many. */
  _phases() {
    const firsts = new Map(this.passes.toReversed().map((one) => [one.phase, one.begin / this.end]));
    return Array.from(firsts, ([phase, share]) => {
      const name = makeElement("span", { class: share > 0.85 ? "before" : "" }, phase);
      name.style.left = `${100 * share}%`;
      return name;
    });
  }

  _point(event) {
    const box = this.canvas.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * this.end;
    this.chosen = Math.max(0, this.passes.findLastIndex((one) => one.begin <= at));
    this._read();
  }

  _press(event) {
    const now = this.chosen ?? this.peak;
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -now, End: this.passes.length - 1 - now };
    if (!(event.key in steps)) return;
    event.preventDefault();
    this.chosen = Math.max(0, Math.min(this.passes.length - 1, now + steps[event.key]));
    this._read();
  }

  _read() {
    const one = this.passes[this.chosen ?? this.peak];
    const part = one.name ? `, ${one.name}${one.repeats > 1 ? ` ${one.turn + 1} of ${one.repeats}` : ""}` : "";
    const text = `${one.phase}${part}: ${formatBytes(one.start_bytes)} before, ${formatBytes(one.peak_bytes)} at most, ${formatBytes(one.end_bytes)} after`;
    this.reading.textContent = this.chosen === null ? `The peak, ${text}. Point at the curve, or focus it and use the arrow keys.` : text;
    this.canvas.setAttribute("aria-valuemax", this.passes.length - 1);
    this.canvas.setAttribute("aria-valuenow", this.chosen ?? this.peak);
    this.canvas.setAttribute("aria-valuetext", text);
    this.cursor.style.left = `${(100 * one.peak_at) / this.end}%`;
  }
}
