// One run: the life of every block, and what is asked of it by all views.
//
// A position on the axis of events is an event's number: a block is there from its birth to its
// death; -1 is before the first event. Heights and sizes are in units of bytes (header.unit_bytes).

class Run {
  constructor({ header, columns }) {
    this.header = header;
    this.columns = columns;
    this.numEvents = header.num_events;
    this.numBlocks = columns.birth.length;
    this.birth = columns.birth;
    this.death = new Int32Array(this.numBlocks);
    for (let i = 0; i < this.numBlocks; i++) this.death[i] = this.birth[i] + columns.life[i];
    this.segmentDeath = columns.segment_birth.map((birth, i) => birth + columns.segment_life[i]);
    this.blockOfEvent = this._findBlocksOfEvents();
    this.group = new Uint8Array(this.numBlocks);
    this.mark = new Uint8Array(this.numBlocks); // 1: does not match what is searched, 2: matches
    this.setGrouping(header.groupings[0]);
  }

  get hasTimes() {
    return this.columns.time !== undefined && this.columns.time.at(-1) > 0;
  }

  /** For each event the block that it brought (number + 1) or took (-number - 1), or 0. */
  _findBlocksOfEvents() {
    const found = new Int32Array(this.numEvents);
    for (let i = 0; i < this.numBlocks; i++) {
      if (this.death[i] < this.numEvents && this.death[i] >= 0) found[this.death[i]] = -i - 1;
      if (this.birth[i] >= 0) found[this.birth[i]] = i + 1;
    }
    return found;
  }

  /** Colours blocks by category, module or call site. */
  setGrouping(grouping) {
    this.grouping = grouping;
    const { category, module, stack, stack_site: site } = this.columns;
    const ofName = grouping.group_of_name;
    for (let i = 0; i < this.numBlocks; i++) {
      if (grouping.by === "category") this.group[i] = category[i];
      else if (grouping.by === "module") this.group[i] = ofName[module[i]];
      else this.group[i] = ofName[site[stack[i]]];
    }
  }

  groupOf(block) {
    return this.grouping.groups[this.group[block]];
  }

  bytes(block) {
    return this.columns.size[block] * this.header.unit_bytes;
  }

  address(block) {
    const { range_y: heights, range_address: addresses, y } = this.columns;
    const range = lowerBound(heights, y[block] + 1) - 1;
    return addresses[range] + (y[block] - heights[range]) * this.header.unit_bytes;
  }

  /** Seconds from the first event to a position on the axis of events. */
  seconds(position) {
    const { time } = this.columns;
    if (!time || time.length === 0) return 0;
    const event = clamp(Math.floor(position), 0, time.length - 1);
    const next = time[Math.min(event + 1, time.length - 1)];
    const part = clamp(position - event, 0, 1);
    return (time[event] + part * (next - time[event])) / 1e6;
  }

  /** The event that is the newest at so many seconds from the first one. */
  eventAtSeconds(seconds) {
    return lowerBound(this.columns.time, seconds * 1e6 + 0.5) - 1;
  }

  /** The frames of a stack, innermost first. */
  frames(stack) {
    const { stack_start: start, stack_frame: frame, frame_file: file } = this.columns;
    const { frame_line: line, frame_function: name, frame_rank: rank } = this.columns;
    const found = [];
    for (let i = start[stack]; i < start[stack + 1]; i++) {
      const number = frame[i];
      found.push({
        file: this.header.files[file[number]],
        line: line[number],
        function: this.header.functions[name[number]],
        rank: rank[number],
      });
    }
    return found;
  }

  site(block) {
    return this.header.sites[this.columns.stack_site[this.columns.stack[block]]];
  }

  module(block) {
    return this.columns.module ? this.header.modules[this.columns.module[block]] : null;
  }

  /** The numbers of the blocks that are live right after an event. */
  liveAfter(event) {
    const found = [];
    for (let i = 0; i < this.numBlocks && this.birth[i] <= event; i++) {
      if (this.death[i] > event) found.push(i);
    }
    return found;
  }
}
