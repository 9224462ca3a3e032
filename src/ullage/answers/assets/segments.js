// The segments at the end: one row each, the blocks inside in their colours, free ranges as holes.

const ROW_HEIGHT = 24;
const BAR_LEFT = 420;

class SegmentsView {
  constructor(run, { scroller, canvas, filler, summary }) {
    Object.assign(this, { run, scroller, canvas, filler, summary });
    this.context = canvas.getContext("2d", { alpha: false });
    this.rows = null; // not found before they are looked at
  }

  /** Fills the view with this run, in an order: "free", "size" or "address". */
  show(order) {
    this.rows ??= this._findRows();
    this._sort(order);
    this.summary.replaceChildren(...this._summary());
    this.filler.style.height = `${this.rows.length * ROW_HEIGHT}px`;
    this.draw();
  }

  _findRows() {
    const { run } = this;
    const { end_address: address, end_bytes: bytes } = run.columns;
    const live = run.liveAfter(run.numEvents - 1).filter((block) => run.death[block] >= run.numEvents);
    const blocks = live.map((block) => ({ block, address: run.address(block), bytes: run.bytes(block) }));
    blocks.sort((a, b) => a.address - b.address);
    const starts = blocks.map((block) => block.address);
    return Array.from(address, (begin, i) => {
      const low = lowerBound(starts, begin);
      const high = lowerBound(starts, begin + bytes[i]);
      const inside = blocks.slice(low, high);
      const used = sumOf(inside.map((block) => block.bytes));
      const hole = largestHole(begin, bytes[i], inside);
      return { number: i, address: begin, bytes: bytes[i], blocks: inside, used, free: bytes[i] - used, hole };
    });
  }

  _summary() {
    const { rows } = this;
    const sum = (name, list = rows) => sumOf(list.map((row) => row[name]));
    const empty = rows.filter((row) => row.used === 0);
    const partly = rows.filter((row) => row.used > 0 && row.free > 0);
    const largest = rows.reduce((most, row) => Math.max(most, row.hole), 0);
    const facts = [
      ["segments", formatCount(rows.length)],
      ["reserved", formatBytes(sum("bytes"))],
      ["live", formatBytes(sum("used"))],
      ["free in segments that are wholly free", formatBytes(sum("free", empty))],
      ["free between live blocks", `${formatBytes(sum("free", partly))} in ${formatCount(partly.length)} segments`],
      ["largest free range", formatBytes(largest)],
    ];
    return facts.map(([label, value]) => makeElement("div", {}, makeElement("b", {}, value), ` ${label}`));
  }

  _sort(by) {
    const orders = {
      free: (a, b) => b.free * (b.used > 0) - a.free * (a.used > 0) || b.free - a.free,
      size: (a, b) => b.bytes - a.bytes,
      address: (a, b) => a.address - b.address,
    };
    this.rows.sort(orders[by]);
  }

  setTheme(theme) {
    this.theme = theme;
  }

  draw() {
    const { canvas, context, scroller, rows, theme } = this;
    const [width, height] = [scroller.clientWidth, scroller.clientHeight];
    fitCanvas(canvas, { width, height });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    context.setTransform(pixelRatio(), 0, 0, pixelRatio(), 0, 0);
    context.fillStyle = theme.ground;
    context.fillRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const top = scroller.scrollTop;
    const last = Math.min(rows.length, Math.ceil((top + height) / ROW_HEIGHT));
    for (let i = Math.floor(top / ROW_HEIGHT); i < last; i++) {
      this._drawRow(rows[i], i * ROW_HEIGHT - top, width);
    }
  }

  _drawRow(row, y, width) {
    const { context, theme, run } = this;
    const { end_is_large: isLarge, end_is_expandable: isExpandable } = run.columns;
    const kind = isExpandable[row.number] ? "expandable" : isLarge[row.number] ? "large" : "small";
    context.fillStyle = theme.text;
    context.fillText(formatAddress(row.address), 8, y + ROW_HEIGHT / 2);
    context.fillText(formatBytes(row.bytes), 130, y + ROW_HEIGHT / 2);
    context.fillStyle = theme.muted;
    context.fillText(kind, 205, y + ROW_HEIGHT / 2);
    context.fillText(row.used === 0 ? "wholly free" : `${formatBytes(row.free)} free`, 285, y + ROW_HEIGHT / 2);
    const scale = (width - BAR_LEFT - 12) / row.bytes;
    context.fillStyle = theme.segment;
    context.fillRect(BAR_LEFT, y + 4, row.bytes * scale, ROW_HEIGHT - 8);
    for (const { block, address, bytes } of row.blocks) {
      const left = BAR_LEFT + (address - row.address) * scale;
      context.fillStyle = run.groupOf(block).color;
      context.fillRect(left, y + 4, Math.max(1, bytes * scale - (bytes * scale > 3 ? 1 : 0)), ROW_HEIGHT - 8);
    }
  }

  /** The row and the block that the pointer is on, or null. */
  at(event) {
    const row = this.rows[Math.floor((event.offsetY + this.scroller.scrollTop) / ROW_HEIGHT)];
    const scale = row ? (this.scroller.clientWidth - BAR_LEFT - 12) / row.bytes : 1;
    if (!row || event.offsetX < BAR_LEFT) return null;
    const address = row.address + (event.offsetX - BAR_LEFT) / scale;
    const block = row.blocks.find((one) => one.address <= address && address < one.address + one.bytes);
    return { row, block: block?.block ?? null };
  }

  /** What `at` found, in words. */
  describe({ row, block }) {
    if (block === null) return `free; the segment has ${formatBytes(row.free)} free in all`;
    return `${formatBytes(this.run.bytes(block))}: ${this.run.site(block)}`;
  }
}

function largestHole(begin, bytes, blocks) {
  let [at, largest] = [begin, 0];
  for (const block of blocks) {
    largest = Math.max(largest, block.address - at);
    at = block.address + block.bytes;
  }
  return Math.max(largest, begin + bytes - at);
}
