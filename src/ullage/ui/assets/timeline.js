// The allocated bytes through one training step: forward, backward, step of the optimizer.

const SVG = "http://www.w3.org/2000/svg";
const [HEIGHT, TOP, BOTTOM, LEFT, RIGHT] = [260, 26, 24, 66, 8];

function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

export class Timeline {
  constructor(element, reading) {
    this.element = element;
    this.reading = reading;
    this.svg = draw("svg", { role: "slider", tabindex: 0, "aria-label": "Moments of one training step", "aria-valuemin": 0, "aria-valuenow": 0 });
    element.append(this.svg);
    this.passes = [];
    this.chosen = null;
    this.svg.addEventListener("pointermove", (event) => this._point(event));
    this.svg.addEventListener("pointerdown", (event) => this._point(event));
    this.svg.addEventListener("keydown", (event) => this._press(event));
    new ResizeObserver(() => this._draw()).observe(element);
  }

  show(found) {
    this.found = found;
    this.passes = found.timeline;
    this.peak = this.passes.reduce((best, one, index) => (one.peak_bytes > this.passes[best].peak_bytes ? index : best), 0);
    if (this.chosen !== null) this.chosen = Math.min(this.chosen, this.passes.length - 1);
    this._draw();
  }

  _draw() {
    const width = this.element.clientWidth;
    if (!this.passes.length || !width) return;
    const { passes, svg } = this;
    const last = passes.at(-1).end;
    const top = passes[this.peak].peak_bytes * 1.08;
    this.x = (event) => LEFT + (event / last) * (width - LEFT - RIGHT);
    this.y = (bytes) => HEIGHT - BOTTOM - (bytes / top) * (HEIGHT - TOP - BOTTOM);
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    svg.setAttribute("aria-valuemax", passes.length - 1);
    const line = passes.map((one) => `L${this._at(one.begin, one.start_bytes)}L${this._at(one.peak_at, one.peak_bytes)}L${this._at(one.end, one.end_bytes)}`).join("").slice(1);
    const floor = this.y(0);
    const peak = passes[this.peak];
    svg.replaceChildren(
      ...this._phases(), ...this._scale(top, width),
      draw("path", { class: "area", d: `M${line}L${this.x(last)},${floor}L${LEFT},${floor}Z` }),
      draw("path", { class: "curve", d: `M${line}` }),
      ...this._limit(top, width),
      draw("circle", { class: "peak", cx: this.x(peak.peak_at), cy: this.y(peak.peak_bytes), r: 5 }),
      this._peakLabel(peak, width));
    this.cursor = draw("line", { class: "cursor", y1: TOP - 4, y2: floor, visibility: "hidden" });
    svg.append(this.cursor);
    this._read();
  }

  _at(event, bytes) {
    return `${this.x(event).toFixed(1)},${this.y(bytes).toFixed(1)}`;
  }

  _phases() {
    const phases = [];
    for (const one of this.passes) {
      if (phases.at(-1)?.phase === one.phase) phases.at(-1).end = one.end;
      else phases.push({ phase: one.phase, begin: one.begin, end: one.end });
    }
    const named = new Set(); // each once: micro-batches have many
    const [bands, labels] = [[], []];
    phases.forEach(({ phase, begin, end }, index) => {
      const [x0, x1] = [this.x(begin), this.x(end)];
      bands.push(draw("rect", { class: index % 2 ? "phase odd" : "phase", x: x0, y: 0, width: x1 - x0, height: HEIGHT - BOTTOM }));
      if (named.has(phase)) return;
      named.add(phase);
      const isEnd = index === 0 || index === phases.length - 1;
      const isBelow = isEnd && x1 - x0 < 62; // a narrow band: its name goes below
      const isLeft = isBelow && index > 0;
      labels.push(draw("text", { class: "name", x: isLeft ? x1 - 4 : x0 + 6, y: isBelow ? HEIGHT - 6 : 16, "text-anchor": isLeft ? "end" : "start" }, phase));
    });
    return [...bands, ...labels];
  }

  _scale(top, width) {
    return makeTicks(0, top, 5, { isBinary: true }).flatMap((tick) => [
      draw("line", { x1: LEFT, x2: width - RIGHT, y1: this.y(tick), y2: this.y(tick) }),
      draw("text", { x: LEFT - 8, y: this.y(tick) + 4, "text-anchor": "end" }, formatTick(tick)),
    ]);
  }

  /** What the GPU has for tensors, where the curve comes near it. */
  _limit(top, width) {
    const around = this.found.terms.filter((term) => term.category === "unattributed");
    const room = this.found.capacity_bytes - around.reduce((sum, term) => sum + term.bytes, 0);
    if (!(room > 0 && room < top)) return [];
    const y = this.y(room);
    return [draw("line", { class: "limit-line", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }),
      draw("text", { class: "limit-name", x: width - RIGHT - 4, y: y - 6, "text-anchor": "end" }, `${this.found.gpu} is full`)];
  }

  _peakLabel(peak, width) {
    const x = this.x(peak.peak_at);
    const isRight = x > width - 150;
    return draw("text", { class: "name", x: x + (isRight ? -10 : 10), y: Math.max(34, this.y(peak.peak_bytes) + 4), "text-anchor": isRight ? "end" : "start" }, formatBytes(peak.peak_bytes));
  }

  _point(event) {
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    const at = share * this.passes.at(-1).end;
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
    this.svg.setAttribute("aria-valuenow", this.chosen ?? this.peak);
    this.svg.setAttribute("aria-valuetext", text);
    this.cursor.setAttribute("visibility", this.chosen === null ? "hidden" : "visible");
    this.cursor.setAttribute("x1", this.x(one.peak_at));
    this.cursor.setAttribute("x2", this.x(one.peak_at));
  }
}
