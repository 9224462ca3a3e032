// The page: its views, its tools, the keyboard, and the frames in which it draws.

const FRAME_MS = 1.5; // of script; what is not done by then goes on in the next frame
const WARM_VIEWS = 40;
const byId = (id) => document.getElementById(id);

function fillSelect(id, options) {
  const elements = options.map(([value, label]) => makeElement("option", { value }, label));
  byId(id).replaceChildren(...elements);
}

class Page {
  constructor(runs) {
    this.axis = "events";
    this.tab = "map";
    const mayBeSlow = location.hash.includes("webgl");
    this.panels = runs.map((run) => {
      const gl = location.hash.includes("pixels") ? null : GlCanvas.create({ mayBeSlow });
      return new Panel(run, { page: this, renderer: gl ?? new PixelCanvas() });
    });
    this.isComparison = document.body.dataset.how === "comparison";
    this._activate(this.panels[0]);
    this.moment = this.active.run.header.peak_event;
    for (const panel of this.panels) {
      panel.parts.name.textContent = this.isComparison ? panel.run.header.title : "";
      byId("panels").append(panel.element);
    }
    this.linkLevels();
    this.fitView();
    this._fillTools();
    this._makeRunViews();
    this._listen();
    this.applyTheme();
    this.showTab("map");
    this.showMoment(this.active, this.active.run.header.peak_event);
  }

  // What is in view.

  /** The panels that are looked at: both of a comparison, one of several devices. */
  get shown() {
    return this.isComparison ? this.panels : [this.active];
  }

  _activate(panel) {
    this.active = panel;
    for (const one of this.panels) one.element.classList.toggle("active", one === panel);
  }

  /** One scale of bytes for the timelines of all runs. */
  linkLevels() {
    const top = Math.max(...this.shown.map(({ timeline }) => timeline.ownTopBytes));
    for (const { timeline } of this.panels) timeline.topBytes = top;
  }

  fitView() {
    const extents = this.shown.map((panel) => extentOf(panel.run, this.axis));
    const low = Math.min(...extents.map(([begin]) => begin));
    const high = Math.max(...extents.map(([, end]) => end), low + (this.axis === "seconds" ? 1e-6 : 1));
    const margin = 0.01 * (high - low);
    this.domain = { x0: low - margin, x1: high + margin };
    this.view = { ...this.domain };
  }

  fit() {
    if (this.tab === "time") {
      this.activeViews.time?.fit();
      this._showTime();
    }
    this.fitView();
    for (const panel of this.panels) panel.moveHeights(0, Infinity);
    this.invalidate();
  }

  /** Moves the view by a share of its width. */
  pan(share) {
    if (this.tab === "time") return this.activeViews.time?.pan(share);
    const span = this.view.x1 - this.view.x0;
    this.setView(this.view.x0 + share * span, span);
  }

  /** Zooms time around a share of the width. */
  zoom(factor, around = 0.5) {
    if (this.tab === "time") return this.activeViews.time?.zoom(factor, around);
    const span = this.view.x1 - this.view.x0;
    const full = this.domain.x1 - this.domain.x0;
    const least = this.axis === "seconds" ? full * 1e-7 : Math.min(MIN_EVENTS, full);
    const newSpan = clamp(span * factor, least, full);
    this.setView(this.view.x0 + around * (span - newSpan), newSpan);
  }

  setView(x0, span) {
    const low = clamp(x0, this.domain.x0, this.domain.x1 - span);
    this.view = { x0: low, x1: low + span };
    this.invalidate();
  }

  setAxis(axis) {
    const { run, map } = this.active;
    const events = [this.view.x0, this.view.x1].map((x) => map.eventAt(x));
    this.axis = axis;
    for (const panel of this.panels) panel.setAxis(axis);
    this.fitView();
    const isWhole = events[0] < 0 && events[1] >= run.numEvents - 1;
    const [begin, end] = events.map((event) => map.xOf(event));
    if (!isWhole) this.setView(begin, Math.max(end - begin, 1e-6));
    this._markAll();
  }

  // What is chosen.

  select(panel, block) {
    for (const one of this.panels) one.selection = one === panel ? block : null;
    this._activate(panel);
    byId("details").replaceChildren(...blockDetails(panel.run, block));
    byId("details").scrollTop = 0;
    this.invalidate();
  }

  /** Brings a block into view. */
  reveal(panel, block) {
    const { map, run } = panel;
    const [begin, end] = [map.xOf(run.birth[block]), map.xOf(run.death[block])];
    const least = this.axis === "seconds" ? 1e-5 : 40;
    const span = Math.max(Math.min(3 * (end - begin), this.view.x1 - this.view.x0), least);
    if (begin > this.view.x1 || end < this.view.x0) this.setView((begin + end - span) / 2, span);
    const { y0, y1 } = map.heights;
    const y = run.columns.y[block];
    if (y < y0 || y > y1) panel.moveHeights(y - (y1 - y0) / 2, y1 - y0);
    this.select(panel, block);
  }

  showMoment(panel, event) {
    this._activate(panel);
    this.moment = event;
    byId("run").value = this.panels.indexOf(panel);
    this._showFacts();
    this._showLegend();
    if (this.tab === "peak") this.showTab("peak");
  }

  _showLegend() {
    const { active, moment, tab } = this;
    const isTime = tab === "time" && this.activeViews.time;
    byId("legend").replaceChildren(
      ...(isTime ? this.activeViews.time.legend() : legendOf(active.run, active.timeline.levels, moment)),
    );
    byId("moment").hidden = isTime || moment === active.run.header.peak_event;
  }

  hover(place) {
    for (const panel of this.panels) panel.parts.cursor.hidden = place === null;
    if (place === null) {
      byId("status").textContent = byId("status").dataset.idle;
      return;
    }
    const { panel, event, share, block } = place;
    const left = `calc(var(--gutter) + (100% - var(--gutter)) * ${share})`;
    for (const one of this.panels) one.parts.cursor.style.left = left;
    const { run, timeline } = panel;
    const live = sumOf(timeline.levels.after(event));
    const parts = [event < 0 ? "before the first event" : `event ${formatCount(event)}`];
    if (run.hasTimes) parts.push(formatSeconds(run.seconds(event), 1e-4));
    parts.push(`${formatBytes(live)} live`, `${formatBytes(timeline.levels.reservedAfter(event))} reserved`);
    if (block !== null) parts.push(`block of ${formatBytes(run.bytes(block))}: ${run.site(block)}`);
    byId("status").textContent = parts.join("  ·  ");
  }

  search(text) {
    this.searchText = text;
    this.found = null;
    for (const panel of this.panels) {
      const found = findBlocks(panel.run, text);
      if (found) found.blocks.sort((a, b) => panel.run.bytes(b) - panel.run.bytes(a));
      if (panel === this.active) this.found = found;
      panel.map.restyle();
    }
    this.foundPlace = -1;
    byId("details").replaceChildren(
      ...(this.found ? searchDetails(text, this.found, (by) => this.stepFound(by)) : []),
    );
    this.invalidate();
  }

  stepFound(by) {
    const blocks = this.found?.blocks ?? [];
    if (blocks.length === 0) return;
    this.foundPlace = (this.foundPlace + by + blocks.length) % blocks.length;
    this.reveal(this.active, blocks[this.foundPlace]);
  }

  // Views and tools.

  showTab(tab) {
    this.tab = tab;
    document.body.dataset.tab = tab;
    for (const button of document.querySelectorAll("[role=tab]")) {
      button.setAttribute("aria-selected", String(button.dataset.tab === tab));
      button.tabIndex = button.dataset.tab === tab ? 0 : -1;
    }
    for (const panel of this.panels) panel.resize();
    this._showLegend();
    if (tab === "time") this._showTime();
    if (tab === "peak") this.activeViews.treemap.show({ event: this.moment });
    if (tab === "segments") this.activeViews.segments.show(byId("segment-by").value);
    if (tab === "findings") byId("findings").replaceChildren(...findingsOf(this.active.run));
    this._markAll();
  }

  /** The last step of the active device; one that was not timed has none. */
  _showTime() {
    byId("time-plot").hidden = !this.activeViews.time;
    this.activeViews.time?.draw();
  }

  get activeViews() {
    return this.views.get(this.active);
  }

  _makeRunViews() {
    const onPick = (block) => this.select(this.active, block);
    this.views = new Map(this.panels.map((panel) => {
      const places = { container: byId("tiles"), crumbs: byId("crumbs") };
      const treemap = new TreemapView(panel.run, { ...places, onPick });
      const segments = new SegmentsView(panel.run, {
        scroller: byId("segment-scroll"), canvas: byId("segment-rows"), filler: byId("segment-filler"),
        summary: byId("segment-summary"),
      });
      const time = panel.run.header.time && new TimeView(panel.run, { canvas: byId("time-plot"), status: byId("status") });
      return [panel, { treemap, segments, time }];
    }));
    const { run } = this.active;
    const options = [["stack", "call stack"], ["group", "colour"]];
    if (run.columns.module) options.unshift(["module", "module"]);
    fillSelect("tile-by", options);
    byId("tile-by").value = this.activeViews.treemap.by;
  }

  _fillTools() {
    const { run } = this.panels[0];
    byId("status").dataset.idle = byId("status").textContent;
    fillSelect("color-by", run.header.groupings.map((grouping, i) => [i, grouping.label]));
    fillSelect("run", this.panels.map((panel, i) => [i, panel.run.header.title]));
    const hasTimes = this.panels.every((panel) => panel.run.hasTimes);
    byId("axis").querySelector("[value=seconds]").disabled = !hasTimes;
    byId("run-label").textContent = this.isComparison ? "run" : "device";
    byId("run").parentElement.hidden = this.panels.length < 2;
    if (byId("report").childElementCount === 0) document.querySelector("[role=tab][data-tab=report]").remove();
    if (!this.panels.some(({ run }) => run.header.time)) document.querySelector("[role=tab][data-tab=time]").remove();
    document.querySelectorAll("[role=tab]").forEach((button, i) => (button.title = i + 1));
    this.tabs = Array.from(document.querySelectorAll("[role=tab]"), (button) => button.dataset.tab);
    const count = sumOf(this.panels.map((panel) => panel.run.header.findings.length));
    byId("finding-count").textContent = count > 0 ? ` (${count})` : "";
    const warnings = this.panels.flatMap((panel) => panel.run.header.contradictions);
    byId("warning").hidden = warnings.length === 0;
    byId("warning").textContent =
      `The file does not agree with itself, so parts of this page are wrong: ${warnings[0]}` +
      (warnings.length > 1 ? `; and ${formatNumberOf(warnings.length - 1, "more place")}.` : ".");
  }

  /** The line beside the title: the run that is looked at. */
  _showFacts() {
    const { run, timeline } = this.active;
    const { numBlocks, numEvents, header, columns } = run;
    byId("facts").textContent = [
      `peak ${formatBytes(timeline.levels.peakBytes)} live`,
      `${formatBytes(timeline.levels.reserved.highest)} reserved`,
      formatNumberOf(numEvents, "event"), formatNumberOf(numBlocks, "block"),
      `${formatNumberOf(columns.end_bytes.length, "segment")} at the end`, `device ${header.device}`,
    ].join("  ·  ");
  }

  colorBy(number) {
    for (const panel of this.panels) {
      const { groupings } = panel.run.header;
      panel.run.setGrouping(groupings[Math.min(number, groupings.length - 1)]);
      panel.regroup();
    }
    this.linkLevels();
    this.showMoment(this.active, this.moment);
    this.showTab(this.tab);
  }

  applyTheme() {
    const theme = readTheme();
    for (const panel of this.panels) panel.setTheme(theme);
    for (const { segments, time } of this.views.values()) {
      segments.setTheme(theme);
      time?.setTheme(theme);
    }
    this._markAll();
    if (this.tab === "time") this._showTime();
    if (this.tab === "segments") this.activeViews.segments.draw();
  }

  _listen() {
    const on = (id, kind, act) => byId(id).addEventListener(kind, act);
    for (const button of document.querySelectorAll("[role=tab]")) {
      button.addEventListener("click", () => this.showTab(button.dataset.tab));
    }
    on("axis", "change", (event) => this.setAxis(event.target.value));
    on("color-by", "change", (event) => this.colorBy(Number(event.target.value)));
    on("tile-by", "change", (event) => this.activeViews.treemap.show({ by: event.target.value }));
    on("run", "change", (event) => {
      this._activate(this.panels[Number(event.target.value)]);
      if (!this.isComparison) {
        this.linkLevels();
        this.fitView();
      }
      this.showMoment(this.active, this.active.run.header.peak_event);
      this.showTab(this.tab);
    });
    on("segment-by", "change", () => this.showTab("segments"));
    on("segment-scroll", "scroll", () => this.activeViews.segments.draw());
    on("segment-rows", "click", (event) => {
      const found = this.activeViews.segments.at(event);
      if (found && found.block !== null) this.select(this.active, found.block);
    });
    on("segment-rows", "mousemove", (event) => {
      const { segments } = this.activeViews;
      const found = segments.at(event);
      event.target.title = found ? segments.describe(found) : "";
    });
    on("time-plot", "pointermove", (event) => {
      const { time } = this.activeViews;
      if (!time) return;
      if (event.buttons !== 1) time.hover(event);
      else if (event.movementX) {
        time.isDragged = true;
        time.pan(-event.movementX / (event.target.clientWidth - 72));
      }
    });
    on("time-plot", "pointerdown", () => {
      if (this.activeViews.time) this.activeViews.time.isDragged = false;
    });
    on("time-plot", "pointerleave", () => this.activeViews.time?.hover(null));
    on("time-plot", "click", (event) => {
      const { time } = this.activeViews;
      if (time.isDragged) return;
      const { span } = time.at(event);
      byId("details").replaceChildren(...(span === null ? [] : time.details(span)));
    });
    on("time-plot", "wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(event.deltaY * 0.0015), (event.offsetX - 72) / (event.target.clientWidth - 72));
    });
    on("time-plot", "dblclick", () => this.fit());
    on("moment-map", "click", () => this.showTab("peak"));
    on("to-peak", "click", () => this.showMoment(this.active, this.active.run.header.peak_event));
    on("fit", "click", () => this.fit());
    on("help", "click", () => byId("help-text").showModal());
    on("theme", "click", () => {
      switchTheme();
      this.applyTheme();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.applyTheme());
    let timer = 0;
    on("search", "input", (event) => {
      clearTimeout(timer);
      timer = setTimeout(() => this.search(event.target.value), 150);
    });
    document.addEventListener("keydown", (event) => this._key(event));
    new ResizeObserver(() => this.showTab(this.tab)).observe(byId("views"));
  }

  _key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("help-text").open) return;
    const isTyping = event.target.matches("input, select");
    if (event.key === "Escape" && isTyping) event.target.blur();
    if (event.key === "Enter" && event.target.id === "search") this.stepFound(1);
    if (isTyping) return;
    const { active } = this;
    const step = event.shiftKey ? 0.5 : 0.12;
    const actions = {
      a: () => this.pan(-step), d: () => this.pan(step), w: () => active.panHeights(step), s: () => active.panHeights(-step),
      ArrowLeft: () => this.pan(-step), ArrowRight: () => this.pan(step),
      ArrowUp: () => active.panHeights(step), ArrowDown: () => active.panHeights(-step),
      "+": () => this.zoom(0.7), "=": () => this.zoom(0.7), "-": () => this.zoom(1 / 0.7),
      "]": () => active.zoomHeights(0.7), "[": () => active.zoomHeights(1 / 0.7),
      0: () => this.fit(), n: () => this.stepFound(1), p: () => this.stepFound(-1),
      x: () => active.run.hasTimes && this._toggleAxis(), t: () => byId("theme").click(),
      "/": () => byId("search").focus(), "?": () => byId("help").click(), Escape: () => this.clear(),
    };
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const isScrolled = event.target.matches("#segment-scroll, #details, #findings, #report");
    const isTab = event.target.matches("[role=tab]") && key.startsWith("Arrow");
    if (this.tabs[key - 1]) this.showTab(this.tabs[key - 1]);
    else if (isTab) this._stepTab(key === "ArrowLeft" ? -1 : 1);
    else if (actions[key] && !(isScrolled && key.startsWith("Arrow"))) actions[key]();
    else return;
    event.preventDefault();
  }

  _stepTab(by) {
    const next = this.tabs[(this.tabs.indexOf(this.tab) + by + this.tabs.length) % this.tabs.length];
    this.showTab(next);
    document.querySelector(`[role=tab][data-tab=${next}]`).focus();
  }

  _toggleAxis() {
    byId("axis").value = this.axis === "events" ? "seconds" : "events";
    this.setAxis(byId("axis").value);
  }

  clear() {
    for (const panel of this.panels) panel.selection = null;
    byId("search").value = "";
    this.search("");
  }

  // Frames.

  _markAll() {
    for (const panel of this.panels) panel.isStale = true;
    this.invalidate();
  }

  /** Draws some views that are not shown: the browser compiles what has run a few times, and the
   * first movement is as quick as those after it. */
  warmUp() {
    for (let i = 0; i < WARM_VIEWS; i++) {
      if (i % 8 === 0) this.fitView();
      this.zoom(0.3, 0.2 + 0.1 * (i % 6));
      this.draw();
    }
    this.fitView();
    this._markAll();
  }

  /** Draws soon. */
  invalidate() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (this.draw()) this.invalidate();
    });
  }

  /** Draws a frame; true if there is more to draw. */
  draw(milliseconds = FRAME_MS) {
    if (this.tab !== "map" && this.tab !== "timeline") return false;
    const deadline = performance.now() + milliseconds;
    let isUnfinished = false;
    for (const panel of this.panels) {
      isUnfinished = panel.draw(this.view, this.axis, deadline) || isUnfinished;
    }
    return isUnfinished;
  }
}
