// The memory of GPUs side by side: areas and bandwidths on one scale for all.

import { groupGpus } from "./controls.js";
import { inkOn } from "./result.js";

const COLORS = { "device memory": "#8fb8dc", "L2 cache": "#e69f00", "L1 cache": "#009e73", "shared memory": "#66c2a5", registers: "#d55e00" };
const INSIDE = ["L2 cache", "L1 cache", "registers"]; // shared memory is a part of L1, or as large
const MOST = 3;

export function formatRate(rate) {
  if (rate === null) return "–";
  if (rate >= 1e13) return `${(rate / 1e12).toFixed(1)} TB/s`;
  return `${(rate / 1e9).toFixed(rate >= 1e11 ? 0 : 1)} GB/s`;
}

export class Hierarchies {
  constructor(element, catalogue, { state, onChange }) {
    this.element = element;
    this.gpus = new Map(catalogue.gpus.map((gpu) => [gpu.slug, gpu]));
    this.groups = groupGpus(catalogue.gpus);
    this.state = state;
    this.onChange = onChange;
  }

  get slugs() {
    const known = this.state.beside.split(",").filter((slug) => this.gpus.has(slug));
    return known.length ? known.slice(0, MOST) : [this.gpus.keys().next().value];
  }

  show() {
    const gpus = this.slugs.map((slug) => this.gpus.get(slug));
    const levels = gpus.flatMap((gpu) => gpu.levels);
    const largest = Math.max(...gpus.map((gpu) => gpu.total_bytes));
    const fastest = Math.max(...levels.map((level) => level.bytes_per_s ?? 0));
    const cards = gpus.map((gpu, index) => this._card(gpu, index, largest, fastest));
    if (gpus.length < MOST) cards.push(makeElement("div", { class: "gpu" }, makeElement("button", { id: "add-gpu", onclick: () => this._choose(gpus.length, "l4") }, "Put another beside")));
    this.element.replaceChildren(...cards);
  }

  _choose(index, slug) {
    const slugs = this.slugs;
    if (slug === null) slugs.splice(index, 1);
    else slugs[index] = slug;
    this.state.beside = slugs.join(",");
    this.onChange();
    this.show();
    this.element.querySelectorAll("select")[Math.min(index, slugs.length - 1)].focus();
  }

  _card(gpu, index, largest, fastest) {
    const select = makeElement("select", { "aria-label": `GPU ${index + 1}`, onchange: () => this._choose(index, select.value) });
    for (const [title, options] of Object.entries(this.groups)) {
      select.append(makeElement("optgroup", { label: title }, ...options.map(([value, text]) => makeElement("option", { value }, text))));
    }
    select.value = gpu.slug;
    const remove = this.slugs.length > 1 ? makeElement("button", { "aria-label": `Remove ${gpu.slug}`, onclick: () => this._choose(index, null) }, "✕") : null;
    return makeElement("article", { class: "gpu", "aria-label": gpu.name }, makeElement("div", { class: "row" }, select, remove),
      makeElement("p", { class: "quiet" }, `${gpu.name}, ${gpu.architecture}, ${gpu.num_multiprocessors} SMs`), drawAreas(gpu, largest), makeTable(gpu, fastest));
  }
}

/** The device's memory as a square, and what is on the chip as squares in it, all to scale. */
function drawAreas(gpu, largest) {
  const sizes = new Map(gpu.levels.map((level) => [level.name, level.num_bytes]));
  const side = (bytes) => 100 * Math.sqrt(bytes / largest);
  const box = (name, percent, left, text) => {
    const element = makeElement("div", { class: "box", title: `${name}: ${formatBytes(sizes.get(name))}` }, text);
    Object.assign(element.style, { left: `${left}%`, width: `${percent}%`, background: COLORS[name], color: inkOn(COLORS[name]) });
    return element;
  };
  const whole = side(gpu.total_bytes);
  const label = whole > 22 ? makeElement("span", {}, makeElement("b", {}, "device memory"), makeElement("br"), formatBytes(gpu.total_bytes)) : "";
  const areas = makeElement("div", { class: "areas", role: "img", "aria-label": `Areas to scale: ${INSIDE.concat("device memory").filter((name) => sizes.get(name)).map((name) => `${name} ${formatBytes(sizes.get(name))}`).join(", ")}` }, box("device memory", whole, 0, label));
  areas.style.setProperty("--share", whole);
  let left = 1.5;
  for (const name of INSIDE) {
    if (!sizes.get(name)) continue;
    const percent = side(sizes.get(name));
    const inside = box(name, percent, left, "");
    inside.classList.add("inside");
    areas.append(inside);
    left += percent + 1;
  }
  return areas;
}

function makeTable(gpu, fastest) {
  const rows = gpu.levels.map((level) => {
    const rate = makeElement("div", { class: "rate" });
    rate.style.width = `${(100 * (level.bytes_per_s ?? 0)) / fastest}%`;
    const swatch = makeElement("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = COLORS[level.name] ?? "transparent";
    return makeElement("tr", {}, makeElement("th", { scope: "row" }, swatch, level.name, makeElement("span", { class: "note" }, level.note)),
      makeElement("td", { class: "number" }, level.num_bytes === null ? "–" : formatBytes(level.num_bytes)),
      makeElement("td", { class: "number" }, formatRate(level.bytes_per_s)),
      makeElement("td", { "aria-hidden": "true" }, level.bytes_per_s ? rate : null));
  });
  const head = ["level", "size", "bandwidth"].map((name, index) => makeElement("th", { scope: "col", class: index ? "number" : "" }, name));
  head.push(makeElement("td", {}));
  return makeElement("table", {}, makeElement("thead", {}, makeElement("tr", {}, ...head)), makeElement("tbody", {}, ...rows));
}
