// How much was live, by group, over time: exact at any zoom, at a cost that depends on the pixels.
//
// Point p is the moment after event p - 1; point 0 is before the first event. Points lie in bins;
// of each bin is kept what was live at its beginning, and what was live at its highest point. Over
// the bins stands a pyramid of which is the highest and the lowest.

const BIN_POINTS = 64;
const FAN = 4;

class Levels {
  constructor(run) {
    this.run = run;
    this.numGroups = run.grouping.groups.length;
    this.numPoints = run.numEvents + 1;
    const numBins = Math.ceil(this.numPoints / BIN_POINTS);
    this.atStart = new Float64Array(numBins * this.numGroups);
    this.atHighest = new Float64Array(numBins * this.numGroups);
    this.highest = new Float64Array(numBins);
    this.lowest = new Float64Array(numBins);
    // What each event adds to the live bytes.
    this.changes = new Float64Array(run.numEvents);
    for (let event = 0; event < run.numEvents; event++) {
      const change = run.blockOfEvent[event];
      if (change !== 0) this.changes[event] = Math.sign(change) * run.bytes(Math.abs(change) - 1);
    }
    this._fillBins();
    this.pyramid = [{ best: Int32Array.from(this.highest, (_, i) => i), lowest: this.lowest }];
    while (this.pyramid.at(-1).best.length > 1) this.pyramid.push(this._above(this.pyramid.at(-1)));
    this._now = new Float64Array(this.numGroups);
    this._point = -1;
    this.reserved = findReserved(run);
  }

  get colors() {
    return this.run.grouping.groups.map((group) => group.color);
  }

  get highestBytes() {
    return Math.max(this.peakBytes, this.reserved.highest);
  }

  get peakBytes() {
    return this.highest[this.pyramid.at(-1).best[0]];
  }

  _fillBins() {
    const { run, numGroups } = this;
    const now = new Float64Array(numGroups);
    for (let i = 0; i < run.numBlocks && run.birth[i] < 0; i++) now[run.group[i]] += run.bytes(i);
    let total = sumOf(now);
    for (let bin = 0; bin < this.highest.length; bin++) {
      const first = bin * BIN_POINTS;
      this.atStart.set(now, bin * numGroups); // before its first point's event
      this.highest[bin] = -1;
      this.lowest[bin] = Infinity;
      for (let p = first; p < Math.min(first + BIN_POINTS, this.numPoints); p++) {
        const change = p > 0 ? this.changes[p - 1] : 0;
        if (change !== 0) now[run.group[Math.abs(run.blockOfEvent[p - 1]) - 1]] += change;
        total += change;
        if (total > this.highest[bin]) {
          this.highest[bin] = total;
          this.atHighest.set(now, bin * numGroups);
        }
        if (total < this.lowest[bin]) this.lowest[bin] = total;
      }
    }
  }

  _above({ best, lowest }) {
    const length = Math.ceil(best.length / FAN);
    const above = { best: new Int32Array(length), lowest: new Float64Array(length).fill(Infinity) };
    for (let i = 0; i < best.length; i++) {
      const parent = Math.floor(i / FAN);
      const isFirst = i % FAN === 0;
      if (isFirst || this.highest[best[i]] > this.highest[above.best[parent]]) {
        above.best[parent] = best[i];
      }
      above.lowest[parent] = Math.min(above.lowest[parent], lowest[i]);
    }
    return above;
  }

  /** What was live at the highest of the points from `begin` up to `end`, by group, written to
   * out at the given place; returns the lowest total. Of a long range: of the bins it touches. */
  readHighest(begin, end, out, place) {
    if (end - begin >= BIN_POINTS) return this._readBins(begin, end, out, place);
    const { changes, _now: now, numGroups } = this;
    this._goTo(begin);
    let total = 0;
    for (let g = 0; g < numGroups; g++) total += now[g];
    let [highest, lowest, best] = [total, total, begin];
    for (let p = begin; p + 1 < end; p++) {
      total += changes[p];
      if (total > highest) {
        highest = total;
        best = p + 1;
      } else if (total < lowest) lowest = total;
    }
    this._goTo(best);
    for (let g = 0; g < numGroups; g++) out[place + g] = now[g];
    return lowest;
  }

  _readBins(begin, end, out, place) {
    let low = Math.floor(begin / BIN_POINTS);
    let high = Math.min(Math.ceil(end / BIN_POINTS), this.highest.length);
    let best = low;
    let lowest = Infinity;
    for (const level of this.pyramid) {
      // The nodes at both ends that are not of a whole parent.
      const left = Math.min(high, Math.ceil(low / FAN) * FAN);
      const right = Math.max(left, Math.floor(high / FAN) * FAN);
      for (let node = low; node < high; node++) {
        if (node === left && right > left) node = right;
        if (node === high) break;
        if (this.highest[level.best[node]] > this.highest[best]) best = level.best[node];
        if (level.lowest[node] < lowest) lowest = level.lowest[node];
      }
      if (left === right) break;
      low = left / FAN;
      high = right / FAN;
    }
    const from = best * this.numGroups;
    for (let g = 0; g < this.numGroups; g++) out[place + g] = this.atHighest[from + g];
    return lowest;
  }

  /** The first point of each pixel column, and of the one after the last; -1 outside the run. */
  pointsOf(view, axis, width, points) {
    const { run } = this;
    const [low, high] = extentOf(run, axis);
    const step = (view.x1 - view.x0) / width;
    for (let column = 0; column <= width; column++) {
      const x = view.x0 + column * step;
      const isOutside = x + step < low || x > high;
      const event = axis === "seconds" ? run.eventAtSeconds(x) : Math.floor(x);
      points[column] = isOutside ? -1 : clamp(event + 1, 0, run.numEvents);
    }
  }

  /** Sets what is live now to a point, from where it was or from the beginning of its bin. */
  _goTo(point) {
    const { changes, numGroups, _now: now } = this;
    const { blockOfEvent, group } = this.run;
    let at = this._point;
    if (at < 0 || at > point || point - at >= BIN_POINTS) {
      const bin = Math.floor(point / BIN_POINTS);
      for (let g = 0; g < numGroups; g++) now[g] = this.atStart[bin * numGroups + g];
      at = Math.max(0, bin * BIN_POINTS - 1); // atStart is before the event of its first point
    }
    for (; at < point; at++) {
      if (changes[at] !== 0) now[group[Math.abs(blockOfEvent[at]) - 1]] += changes[at];
    }
    this._point = point;
  }

  /** Bytes by group right after an event. */
  after(event) {
    this._goTo(clamp(event + 1, 0, this.numPoints - 1));
    return Float64Array.from(this._now);
  }

  /** Reserved bytes right after an event. */
  reservedAfter(event) {
    return this.reserved.bytes[Math.max(0, lowerBound(this.reserved.event, event + 1) - 1)];
  }
}

/** The events at which the reserved bytes changed, and what they were from then on. */
function findReserved(run) {
  const { segment_birth: birth, segment_size: size } = run.columns;
  const changes = new Map([[-1, 0]]);
  const add = (event, bytes) => changes.set(event, (changes.get(event) ?? 0) + bytes);
  for (let i = 0; i < birth.length; i++) {
    add(birth[i], size[i] * run.header.unit_bytes);
    if (run.segmentDeath[i] < run.numEvents) add(run.segmentDeath[i], -size[i] * run.header.unit_bytes);
  }
  const event = [...changes.keys()].sort((a, b) => a - b);
  let sum = 0;
  const bytes = event.map((one) => (sum += changes.get(one)));
  return { event, bytes, highest: bytes.reduce((a, b) => Math.max(a, b), 0) };
}

/** Where a run begins and ends on an axis. */
function extentOf(run, axis) {
  return axis === "seconds" ? [0, run.seconds(run.numEvents)] : [-1, Math.max(run.numEvents, 0)];
}
