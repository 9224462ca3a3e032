// The map: time to the right, addresses upward, one rectangle for each block's life.
//
// Blocks lie sorted in buckets of similar life and size, the largest area first, by birth within
// each: what a view shows are a few ranges of them. A picture of a view is drawn in slices of a few
// milliseconds; until it is done the last one is shown, moved and stretched. So a frame costs
// little whatever is in view.

const LEAST_SLICE_MS = 0.5;
const SEGMENT_INK = 31;
const HEADROOM = 1.02;

class MapView {
  constructor(run, { canvas, renderer }) {
    this.run = run;
    this.front = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.painter = renderer;
    this.picture = document.createElement("canvas");
    this.pictureContext = this.picture.getContext("2d", { alpha: false });
    this.pictureView = null;
    this.job = null;
    this.heights = { y0: 0, y1: Math.max(run.header.total_height * HEADROOM, 1) };
    this._sortBlocks();
    this.setAxis("events");
  }

  /** Sorts the blocks into buckets. */
  _sortBlocks() {
    const { run } = this;
    const { life, size } = run.columns;
    const keys = new Uint16Array(run.numBlocks);
    const counts = new Map();
    for (let i = 0; i < run.numBlocks; i++) {
      const lifeClass = Math.min(15, (32 - Math.clz32(life[i])) >> 1);
      const sizeClass = Math.min(15, (32 - Math.clz32(size[i])) >> 1);
      keys[i] = ((31 - lifeClass - sizeClass) << 4) | lifeClass;
      counts.set(keys[i], (counts.get(keys[i]) ?? 0) + 1);
    }
    const numSegments = run.columns.segment_birth.length;
    let first = numSegments;
    this.buckets = [...counts.keys()].sort((a, b) => a - b).map((key) => {
      const bucket = { key, first, end: first, longest: 0 };
      first += counts.get(key);
      return bucket;
    });
    const bucketOf = new Map(this.buckets.map((bucket) => [bucket.key, bucket]));
    this.order = new Int32Array(run.numBlocks); // block of each place, less the segments
    for (let i = 0; i < run.numBlocks; i++) {
      const bucket = bucketOf.get(keys[i]);
      this.order[bucket.end++ - numSegments] = i;
      bucket.longest = Math.max(bucket.longest, life[i]);
    }
    this.births = Int32Array.from(this.order, (block) => run.birth[block]);
    this.numSegments = numSegments;
    this.boxes = new Int32Array(4 * (numSegments + run.numBlocks));
    this.styles = new Uint8Array(2 * (numSegments + run.numBlocks));
  }

  /** Lays the blocks along an axis: "events" or "seconds" (in steps that fit into 31 bits). */
  setAxis(axis) {
    const { run, boxes, numSegments } = this;
    const { segment_birth: birth, segment_y: segmentY, segment_size: segmentSize, y, size } = run.columns;
    const length = axis === "seconds" ? run.seconds(run.numEvents) : 0;
    this.axis = axis;
    this.unitsPerX = axis === "seconds" ? Math.min(1e6, 2 ** 30 / Math.max(length, 1)) : 1;
    const place = (event) => axis === "seconds" ? Math.round(run.seconds(event) * this.unitsPerX) : event;
    const put = (at, begin, end, low, high) => boxes.set([place(begin), place(end), low, high], 4 * at);
    for (let i = 0; i < numSegments; i++) put(i, birth[i], run.segmentDeath[i], segmentY[i], segmentSize[i]);
    for (let i = 0; i < run.numBlocks; i++) {
      const block = this.order[i];
      const at = 4 * (numSegments + i);
      boxes[at] = place(run.birth[block]);
      boxes[at + 1] = place(run.death[block]);
      boxes[at + 2] = y[block];
      boxes[at + 3] = size[block];
    }
    this.pictureView = null;
    this.restyle();
  }

  /** Takes over the colours and marks of blocks. */
  restyle() {
    const { run, styles, numSegments } = this;
    for (let i = 0; i < numSegments; i++) styles[2 * i] = SEGMENT_INK;
    for (let i = 0; i < run.numBlocks; i++) {
      const block = this.order[i];
      styles[2 * (numSegments + i)] = run.group[block];
      styles[2 * (numSegments + i) + 1] = run.mark[block];
    }
    this.painter.load(this);
    this.job = null;
    this.isStale = true;
  }

  setTheme({ ground, segment, text, muted, line }) {
    const inks = this.run.grouping.groups.map((group) => parseColor(group.color));
    while (inks.length < 32) inks.push(parseColor(segment));
    this.inks = { ground: parseColor(ground), colors: inks };
    this.theme = { text, muted, line, ground };
    this.isStale = true;
    this.job = null;
  }

  resize(size) {
    if (!fitCanvas(this.front, size)) return;
    const { width, height } = this.front;
    Object.assign(this.picture, { width, height });
    this.painter.resize(width, height);
    this.pictureView = null;
    this.job = null;
    this.isStale = true;
  }

  /** The ranges of places that may be in view, the largest blocks first. */
  _visible(x0, x1) {
    const [from, to] = [this.eventAt(x0), this.eventAt(x1) + 1];
    const ranges = this.numSegments > 0 ? [[0, this.numSegments]] : [];
    for (const { first, end, longest } of this.buckets) {
      const shift = this.numSegments;
      const low = lowerBound(this.births, from - longest, first - shift, end - shift) + shift;
      const high = lowerBound(this.births, to + 1, first - shift, end - shift) + shift;
      if (low < high) ranges.push([low, high]);
    }
    return ranges;
  }

  eventAt(x) {
    return this.axis === "seconds" ? this.run.eventAtSeconds(x) : Math.floor(x);
  }

  /** Draws a frame, all of the picture if there is no deadline; true if it is not finished yet. */
  draw(view, { selection = null, deadline = Infinity } = {}) {
    const full = { ...view, ...this.heights };
    if (deadline === Infinity) this.job = null; // of another view
    if (!this.job && (this.isStale || !sameView(this.pictureView, full))) this._start(full);
    if (this.job) this._work(deadline);
    const { context, front } = this;
    context.fillStyle = this.theme.ground;
    context.fillRect(0, 0, front.width, front.height);
    if (this.pictureView) {
      const old = this.pictureView;
      const scaleX = front.width / (full.x1 - full.x0);
      const scaleY = front.height / (full.y1 - full.y0);
      context.imageSmoothingEnabled = false;
      context.drawImage(
        this.picture,
        (old.x0 - full.x0) * scaleX, (full.y1 - old.y1) * scaleY,
        (old.x1 - old.x0) * scaleX, (old.y1 - old.y0) * scaleY,
      );
    }
    if (selection !== null) this._outline(full, selection);
    return this.job !== null || !sameView(this.pictureView, full);
  }

  _start(view) {
    const units = this.unitsPerX;
    this.painter.begin({ ...view, x0: view.x0 * units, x1: view.x1 * units }, this.inks);
    this.job = { view, ranges: this._visible(view.x0, view.x1) };
    this.isStale = false;
  }

  /** Draws on until the deadline, or one batch where the GPU does the work. */
  _work(deadline) {
    const { painter, job } = this;
    const isGpu = painter instanceof GlCanvas;
    const end = Math.max(deadline, performance.now() + LEAST_SLICE_MS);
    let left = isGpu && deadline !== Infinity ? this._adaptBatch() : Infinity;
    while (job.ranges.length > 0 && left > 0 && (isGpu || performance.now() < end)) {
      const range = job.ranges[0];
      const last = Math.min(range[1], range[0] + (isGpu ? left : painter.batch));
      painter.draw(range[0], last);
      left -= last - range[0];
      range[0] = last;
      if (last === range[1]) job.ranges.shift();
    }
    this.wasFull = left <= 0;
    if (job.ranges.length > 0) return;
    painter.finish();
    this.pictureContext.drawImage(painter.canvas, 0, 0);
    this.pictureView = job.view;
    this.job = null;
  }

  /** How many instances a frame: more while frames come fast, fewer when they are late. */
  _adaptBatch() {
    const now = performance.now();
    const gap = now - (this.lastWork ?? now);
    this.lastWork = now;
    if (gap > 40 && gap < 1000) this.painter.batch = Math.max(4000, this.painter.batch / 2);
    else if (gap < 25 && this.wasFull) this.painter.batch = Math.min(2e6, this.painter.batch * 2);
    return Math.floor(this.painter.batch);
  }

  _outline(view, block) {
    const { run, context, front } = this;
    const scaleX = front.width / (view.x1 - view.x0);
    const scaleY = front.height / (view.y1 - view.y0);
    const [begin, end] = [this.xOf(run.birth[block]), this.xOf(run.death[block])];
    const { y, size } = run.columns;
    const left = Math.max(-4, (begin - view.x0) * scaleX);
    const right = Math.min(front.width + 4, (end - view.x0) * scaleX);
    const top = (view.y1 - y[block] - size[block]) * scaleY;
    const height = Math.max(2, size[block] * scaleY);
    context.lineWidth = 5;
    context.strokeStyle = this.theme.ground;
    context.strokeRect(left - 1, top - 1, Math.max(2, right - left) + 2, height + 2);
    context.lineWidth = 2;
    context.strokeStyle = this.theme.text;
    context.strokeRect(left - 1, top - 1, Math.max(2, right - left) + 2, height + 2);
  }

  xOf(event) {
    return this.axis === "seconds" ? this.run.seconds(event) : event;
  }

  /** The block that lies at a place of the canvas (CSS pixels), or null. */
  pick(view, offsetX, offsetY) {
    const full = { ...view, ...this.heights };
    const perX = (full.x1 - full.x0) / this.front.clientWidth;
    const perY = (full.y1 - full.y0) / this.front.clientHeight;
    const x = full.x0 + offsetX * perX;
    const y = full.y1 - offsetY * perY;
    return this._blockNear(x, y, 0, 0) ?? this._blockNear(x, y, 1.5 * perX, 1.5 * perY);
  }

  _blockNear(x, y, slackX, slackY) {
    const { run } = this;
    const { y: heights, size } = run.columns;
    const [from, to] = [this.eventAt(x - slackX), this.eventAt(x + slackX)];
    for (const [low, high] of this._visible(x - slackX, x + slackX)) {
      for (let place = Math.max(low, this.numSegments); place < high; place++) {
        const block = this.order[place - this.numSegments];
        if (run.birth[block] > to || run.death[block] <= from) continue;
        if (heights[block] - slackY <= y && y < heights[block] + size[block] + slackY) return block;
      }
    }
    return null;
  }
}

function sameView(one, other) {
  return one !== null && ["x0", "x1", "y0", "y1"].every((name) => one[name] === other[name]);
}
