// Who holds the memory at a moment: live blocks as nested areas, by module or by the lines that
// called for them, from the outermost inward.

const MAX_TILES = 500;
const TILE_HEAD = 19;

class TreemapView {
  constructor(run, { container, crumbs, onPick }) {
    this.run = run;
    this.container = container;
    this.crumbs = crumbs;
    this.onPick = onPick;
    this.by = run.columns.module ? "module" : "stack";
    this.event = run.header.peak_event;
    this.paths = new Map();
  }

  /** Shows a moment; by is "module", "stack" or "group". */
  show({ event = this.event, by = this.by } = {}) {
    Object.assign(this, { event, by });
    this.root = emptyNode("all");
    for (const block of this.run.liveAfter(event)) this._add(block);
    this.trail = [this.root];
    this.draw();
  }

  _pathOf(block) {
    const { run } = this;
    if (this.by === "group") return [run.groupOf(block).label, run.site(block)];
    if (this.by === "module") {
      const path = run.module(block);
      return path ? path.split(".") : ["(no module)"];
    }
    const stack = run.columns.stack[block];
    if (!this.paths.has(stack)) {
      const frames = run.frames(stack).reverse();
      const own = frames.filter((frame) => frame.rank <= 1);
      const path = own.map((frame) => `${frame.function} (${shortPath(frame.file)}:${frame.line})`);
      this.paths.set(stack, path.length > 0 ? path : [run.site(block)]);
    }
    return this.paths.get(stack);
  }

  _add(block) {
    const bytes = this.run.bytes(block);
    const path = this._pathOf(block);
    let node = this.root;
    for (let depth = 0; ; depth++) {
      node.bytes += bytes;
      node.count += 1;
      const group = this.run.group[block];
      node.groups.set(group, (node.groups.get(group) ?? 0) + bytes);
      if (depth === path.length) break;
      const label = path[depth];
      if (!node.children.has(label)) {
        node.children.set(label, emptyNode(label));
      }
      node = node.children.get(label);
    }
    node.blocks.push(block);
  }

  draw() {
    const { container, trail } = this;
    const node = trail.at(-1);
    container.replaceChildren();
    this.numTiles = 0;
    this._drawCrumbs();
    if (node.bytes === 0) {
      container.append(makeElement("p", { class: "empty" }, "Nothing is live at this moment."));
      return;
    }
    const box = { x: 0, y: 0, width: container.clientWidth, height: container.clientHeight };
    this._layOut(node, box, 0);
  }

  _drawCrumbs() {
    const { run, event, trail } = this;
    const moment = event === run.header.peak_event ? "at the peak" : `after event ${formatCount(event)}`;
    const links = trail.map((node, i) =>
      makeElement(
        "button",
        { class: "crumb", onclick: () => this._goBack(i + 1) },
        i === 0 ? `Live ${moment}: ${formatBytes(node.bytes)} in ${formatNumberOf(node.count, "block")}` : node.label,
      ),
    );
    this.crumbs.replaceChildren(...links);
  }

  _goBack(depth) {
    this.trail = this.trail.slice(0, depth);
    this.draw();
  }

  /** The children of a node, those that are alone passed through, and what the node has itself. */
  _parts(node) {
    let own = node;
    while (own.children.size === 1 && own.blocks.length === 0) own = [...own.children.values()][0];
    const parts = [...own.children.values()];
    if (own.blocks.length > 0 && parts.length > 0) {
      const bytes = sumOf(own.blocks.map((block) => this.run.bytes(block)));
      const groups = new Map([[this.run.group[own.blocks[0]], bytes]]);
      const itself = { ...emptyNode("(itself)"), bytes, count: own.blocks.length, groups, blocks: own.blocks };
      parts.push(itself);
    }
    return parts.sort((a, b) => b.bytes - a.bytes);
  }

  _layOut(node, box, depth) {
    for (const [part, area] of squarify(this._parts(node), box)) {
      if (this.numTiles >= MAX_TILES || area.width < 3 || area.height < 3) continue;
      this.numTiles += 1;
      this._drawTile(part, area, depth);
      const inner = {
        x: area.x + 2, y: area.y + TILE_HEAD, width: area.width - 4, height: area.height - TILE_HEAD - 2,
      };
      if (depth < 3 && inner.width > 60 && inner.height > 34 && this._parts(part).length > 0) {
        this._layOut(part, inner, depth + 1);
      }
    }
  }

  _drawTile(part, area, depth) {
    const [group] = [...part.groups.entries()].reduce((a, b) => (b[1] > a[1] ? b : a));
    const { color, label: groupLabel } = this.run.grouping.groups[group];
    let label = part.label;
    for (let own = part; own.children.size === 1 && own.blocks.length === 0; ) {
      own = [...own.children.values()][0];
      label = this.by === "module" ? `${label}.${own.label}` : own.label;
    }
    const title = `${label}\n${formatBytes(part.bytes)} in ${formatCount(part.count)} blocks\nmostly ${groupLabel}`;
    const tile = makeElement(
      "button",
      { class: `tile depth${depth}`, title, onclick: () => this._enter(part) },
      makeElement("span", { class: "name" }, area.width > 40 && area.height > 14 ? label : ""),
      makeElement("span", { class: "bytes" }, area.width > 130 && area.height > 14 ? formatBytes(part.bytes) : ""),
    );
    const style = { left: area.x, top: area.y, width: area.width - 1, height: area.height - 1 };
    for (const [name, value] of Object.entries(style)) tile.style[name] = `${Math.max(1, value)}px`;
    tile.style.setProperty("--tile", color);
    tile.style.color = isLight(color) ? "#111" : "#fff";
    this.container.append(tile);
  }

  _enter(part) {
    if (this._parts(part).length > 0) {
      this.trail = [...this.trail, part];
      this.draw();
    }
    let own = part;
    while (own.children.size > 0) own = [...own.children.values()].reduce((a, b) => (b.bytes > a.bytes ? b : a));
    if (own.blocks.length > 0) {
      this.onPick(own.blocks.reduce((a, b) => (this.run.bytes(b) > this.run.bytes(a) ? b : a)));
    }
  }
}

const emptyNode = (label) => ({ label, bytes: 0, count: 0, children: new Map(), groups: new Map(), blocks: [] });

const shortPath = (file) => file.split("/").slice(-2).join("/");

function isLight(color) {
  const [red, green, blue] = parseColor(color);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140;
}

/** Areas for parts, sorted by bytes, as close to squares as may be (Bruls, Huizing, van Wijk). */
function squarify(parts, box) {
  const placed = [];
  let { x, y, width, height } = box;
  let rest = sumOf(parts.map((part) => part.bytes));
  for (let first = 0; first < parts.length && rest > 0; ) {
    const short = Math.min(width, height);
    const perByte = (width * height) / rest;
    let sum = 0;
    let worst = Infinity;
    let end = first;
    while (end < parts.length) {
      const next = sum + parts[end].bytes;
      const side = (next * perByte) / short; // thickness of the row
      const longest = (parts[first].bytes * perByte) / side;
      const shortest = (parts[end].bytes * perByte) / side;
      const ratio = Math.max(longest / side, side / shortest, side / longest, shortest / side);
      if (ratio > worst) break;
      worst = ratio;
      sum = next;
      end += 1;
    }
    const side = (sum * perByte) / short;
    let along = 0;
    for (; first < end; first++) {
      const length = (parts[first].bytes * perByte) / side;
      const area = width >= height
        ? { x, y: y + along, width: side, height: length }
        : { x: x + along, y, width: length, height: side };
      placed.push([parts[first], area]);
      along += length;
    }
    rest -= sum;
    if (width >= height) [x, width] = [x + side, width - side];
    else [y, height] = [y + side, height - side];
  }
  return placed;
}
