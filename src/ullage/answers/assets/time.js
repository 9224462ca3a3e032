// The last step by the clock: memory in use, and below it the work of each stream, coloured by kind.
//
// Memory and work share the axis, seconds from the step's begin: a level of memory stands where the
// work begins that was given after it.

const LANE_HEIGHT = 34; // at most
const MEMORY_SHARE = 0.5; // of the height, at least
const LEAST_STEP_SHARE = 1e-5; // of the step that can fill the view
const HOST = -1; // the lane of the host's waits

class TimeView {
  constructor(run, { canvas, status }) {
    Object.assign(this, { run, canvas, status, hovered: null });
    const { span_stream: streams, level_start: starts, level_allocated: allocated, level_reserved: reserved } = run.columns;
    this.header = run.header.time;
    this.lanes = [...new Set(streams)].sort((a, b) => a - b);
    this.levels = new StepLevels({ starts: Array.from(starts, (start) => start / 1e9), allocated, reserved, end: this.header.step_s });
    this.timeline = new Timeline(document.createElement("canvas"), run.header.capacity);
    this.timeline.show(this.levels);
    // The spans of each lane, in the order of their begin.
    this.spans = this.lanes.map((lane) => Int32Array.from(streams.keys()).filter((i) => streams[i] === lane));
    this.fit();
  }

  setTheme(theme) {
    this.theme = theme;
    this.levels.colors = [theme.accent];
    this.timeline.setTheme(theme);
  }

  begin(span) {
    return this.run.columns.span_start[span] / 1e9;
  }

  end(span) {
    return this.begin(span) + this.run.columns.span_life[span] / 1e9;
  }

  kind(span) {
    return this.header.kinds[this.run.columns.span_kind[span]];
  }

  fit() {
    this.view = { x0: 0, x1: this.header.step_s };
  }

  pan(share) {
    const { x0, x1 } = this.view;
    this._show(x0 + share * (x1 - x0), x1 - x0);
  }

  zoom(factor, around = 0.5) {
    const { x0, x1 } = this.view;
    const whole = this.header.step_s;
    const span = clamp(factor * (x1 - x0), LEAST_STEP_SHARE * whole, whole);
    this._show(x0 + around * (x1 - x0 - span), span);
  }

  _show(begin, span) {
    const x0 = clamp(begin, 0, this.header.step_s - span);
    this.view = { x0, x1: x0 + span };
    this.draw();
  }

  /** Where everything lies, in pixels of the page. */
  _layOut() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const gutter = Math.min(72, width / 5);
    const lane = clamp(((1 - MEMORY_SHARE) * height - 24) / this.lanes.length, 4, LANE_HEIGHT);
    const lanes = height - 24 - lane * this.lanes.length;
    return { width: width - gutter, height, gutter, lane, lanes, axis: height - 24, memory: lanes - 8 };
  }

  draw() {
    if (!this.canvas.clientHeight) return;
    const place = this._layOut();
    const size = { width: this.canvas.clientWidth, height: place.height };
    const { context } = clearScale(this.canvas, size, this.theme);
    drawScale({ context, width: place.gutter, height: place.memory }, 0, this.timeline.topBytes, this.theme);
    context.save();
    context.beginPath();
    context.rect(place.gutter, 0, place.width, place.axis);
    context.clip();
    context.translate(place.gutter, 0);
    const { width, memory: height } = place;
    this.timeline.resize({ width, height });
    this.timeline.draw(this.view);
    context.drawImage(this.timeline.canvas, 0, 0, width, height);
    this.lanes.forEach((_, number) => this._drawLane(context, place, number));
    context.restore();
    this._drawNames(context, place);
    context.translate(place.gutter, place.axis);
    drawAxis(context, place.width, this.view, { theme: this.theme, format: formatMoment });
  }

  _x(seconds, { width }) {
    return ((seconds - this.view.x0) / (this.view.x1 - this.view.x0)) * width;
  }

  _drawLane(context, place, number) {
    const top = place.lanes + number * place.lane;
    const bar = place.lane - 3;
    context.fillStyle = this.theme.segment;
    context.fillRect(0, top, place.width, bar);
    const narrow = { slot: null, width: 0, color: null };
    const drawNarrow = (slot) => {
      if (narrow.width > 0) {
        context.fillStyle = narrow.color;
        context.fillRect(narrow.slot, top, 1, bar);
      }
      Object.assign(narrow, { slot, width: 0 });
    };
    for (const span of this.spans[number]) {
      const begin = this._x(this.begin(span), place);
      if (begin > place.width) break;
      const end = this._x(this.end(span), place);
      if (end < 0) continue;
      if (end - begin < 1) {
        // Of many in one pixel the longest is drawn: a frame costs what the pixels cost.
        const slot = Math.floor(begin);
        if (slot !== narrow.slot) drawNarrow(slot);
        if (end - begin > narrow.width) Object.assign(narrow, { width: end - begin, color: this.kind(span).color });
        continue;
      }
      context.fillStyle = this.kind(span).color;
      context.fillRect(begin, top, end - begin - (end - begin > 4), bar);
      if (end - begin < 60 || bar < 14) continue;
      const left = Math.max(begin, 0);
      const name = shortened(context, this.name(span), Math.min(end, place.width) - left - 8);
      context.fillStyle = isLight(this.kind(span).color) ? "#111" : "#fff";
      context.textAlign = "left";
      context.fillText(name, left + 4, top + bar / 2);
    }
    drawNarrow(null);
    if (this.hovered?.lane !== number) return;
    const [begin, end] = [this._x(this.begin(this.hovered.span), place), this._x(this.end(this.hovered.span), place)];
    context.strokeStyle = this.theme.text;
    context.lineWidth = 2;
    context.strokeRect(begin, top, Math.max(end - begin, 1), bar);
  }

  _drawNames(context, place) {
    context.fillStyle = this.theme.muted;
    context.textAlign = "right";
    if (place.lane < 11) return;
    this.lanes.forEach((lane, number) => {
      const name = lane === HOST ? "host waits" : `stream ${lane}`;
      context.fillText(name, place.gutter - 8, place.lanes + (number + 0.5) * place.lane - 1);
    });
  }

  name(span) {
    return this.header.names[this.run.columns.span_name[span]];
  }

  /** The lane and the span at a place of the canvas; the nearest within three pixels. */
  at({ offsetX, offsetY }) {
    const place = this._layOut();
    const lane = Math.floor((offsetY - place.lanes) / place.lane);
    const perPixel = (this.view.x1 - this.view.x0) / place.width;
    const seconds = this.view.x0 + (offsetX - place.gutter) * perPixel;
    let best = null;
    let nearest = 3 * perPixel;
    for (const span of this.spans[lane] ?? []) {
      const far = Math.max(0, this.begin(span) - seconds, seconds - this.end(span));
      if (far < nearest) [best, nearest] = [span, far];
    }
    return { seconds, lane, span: best };
  }

  hover(event) {
    const { seconds, lane, span } = event ? this.at(event) : { span: null };
    const cursor = this.canvas.nextElementSibling;
    cursor.hidden = !event || seconds < 0;
    if (event) cursor.style.left = `${event.offsetX}px`;
    const isChanged = this.hovered?.span !== span;
    this.hovered = span === null ? null : { lane, span };
    const parts = event && seconds >= 0 ? [`at ${formatMoment(seconds, this.header.step_s / 1000)}`] : [];
    if (parts.length) parts.push(`${formatBytes(this.levels.at(seconds))} live`);
    if (span !== null) parts.unshift(...this.describe(span).map(([, value]) => value));
    this.status.textContent = parts.join("  ·  ") || this.status.dataset.idle;
    if (isChanged) this.draw();
  }

  describe(span) {
    const { columns } = this.run;
    return [
      ["work", this.name(span)],
      ["kind", this.kind(span).label],
      ["time", formatMoment(this.end(span) - this.begin(span))],
      ["part", this.header.parts[columns.span_part[span]]],
      ["module", this.header.modules[columns.span_module[span]]],
    ].filter(([, value]) => value);
  }

  details(span) {
    const rows = [
      ...this.describe(span), ["begins", formatMoment(this.begin(span), this.header.step_s / 1000)],
      ["live then", formatBytes(this.levels.at(this.begin(span)))],
    ];
    return [
      makeElement("h2", {}, swatch(this.kind(span).color), ` ${this.name(span)}`),
      factList(rows.slice(1)),
    ];
  }

  /** Where the step's time goes. */
  legend() {
    return [
      makeElement("h2", {}, "Where the step's time goes"),
      makeElement("table", { class: "legend" }, ...this.header.rows.map((row) => legendRow(row, row.seconds, row.share))),
    ];
  }
}

/** Seconds in a unit that fits, with the digits that a step of so many seconds needs. */
function formatMoment(seconds, step = seconds / 100) {
  const size = Math.abs(step) || 1e-9;
  const [scale, unit] = size >= 0.01 ? [1, "s"] : size >= 1e-5 ? [1e3, "ms"] : [1e6, "µs"];
  const digits = Math.max(0, Math.min(3, Math.ceil(-Math.log10(size * scale) - 1e-9)));
  return `${(seconds * scale).toFixed(digits)} ${unit}`;
}

/** A text that is no wider than so many pixels. */
function shortened(context, text, width) {
  const count = Math.floor((width / context.measureText(text).width) * text.length);
  return count >= text.length ? text : count < 3 ? "" : `${text.slice(0, count - 1)}…`;
}
