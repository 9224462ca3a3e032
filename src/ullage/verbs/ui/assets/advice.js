// What else could be: GPUs, the largest that fits, what would save most. Asked only where it is
// open, and when the hand rests: each takes a second or more.

import { Latest, post } from "./ask.js";

const REST_MS = 500;
const FEW = 12; // GPUs that are shown before all are asked for
const NAMES = { batch: "batch", length: "sequence", image: "image side", depth: "layers" };

export class Advice {
  constructor(element, { state, apply }) {
    this.state = state;
    this.apply = apply;
    this.timer = 0;
    this.sections = Object.fromEntries([["gpus", makeGpus], ["largest", makeLargest], ["knobs", makeKnobs]].map(([about, make]) => [about, this._section(about, make)]));
    for (const { details } of Object.values(this.sections)) details.addEventListener("toggle", () => this._ask());
    element.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-set]");
      if (button) this.apply(JSON.parse(button.dataset.set));
    });
  }

  _section(about, make) {
    const details = document.getElementById(`advice-${about}`);
    const [body, status] = [details.querySelector(".body"), details.querySelector("[role=status]")];
    const section = { details, body, status, shown: "", make };
    section.latest = new Latest((query) => post("/advice", { about, query }), (answer, problem, query) => {
      const asked = JSON.stringify(query);
      if (asked !== JSON.stringify(this.query)) { // the controls have moved on meanwhile
        status.textContent = "";
        if (!this.timer) this._ask();
        return;
      }
      section.shown = asked;
      status.textContent = problem ?? "";
      body.replaceChildren(answer ? make(answer.rows, this.state, query) : "");
      body.classList.remove("stale");
    });
    return section;
  }

  get isIdle() {
    return !this.timer && Object.values(this.sections).every(({ latest }) => latest.isIdle);
  }

  /** Another query has been answered: what is open is asked again, once the hand rests. null: the
   * controls say nothing that has an answer. */
  follow(query) {
    this.query = query;
    for (const { body, shown } of Object.values(this.sections)) body.classList.toggle("stale", shown !== JSON.stringify(query));
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this._ask(), REST_MS);
  }

  _ask() {
    clearTimeout(this.timer);
    this.timer = 0;
    if (!this.query) return;
    const text = JSON.stringify(this.query);
    for (const { details, latest, shown, status } of Object.values(this.sections)) {
      if (shown === text) status.textContent = "";
      if (!details.open || shown === text || !details.checkVisibility()) continue;
      status.textContent = "Looking …";
      latest.want(this.query);
    }
  }
}

const numbers = (...texts) => texts.map((text) => makeElement("td", { class: "number" }, text));

function makeTable(heads, rows) {
  const head = heads.map((text, index) => makeElement("th", { scope: "col", class: index ? `number ${text}` : "" }, text));
  return makeElement("table", {}, makeElement("thead", {}, makeElement("tr", {}, ...head)), makeElement("tbody", {}, ...rows));
}

/** A button that sets controls. */
const makeSetter = (text, changes, label = null) => makeElement("button", { type: "button", class: "link", "data-set": JSON.stringify(changes), "aria-label": label }, text);

/** The catalogue, those that fit first; the page's own GPU is always among those shown. */
function makeGpus(rows, state, query) {
  const isServing = "serve" in query;
  const isSpread = query.recipe?.layout !== undefined;
  const heads = isServing ? ["GPU", "how many", "memory", "users"] : ["GPU", "how many", "memory", "needs", "left"];
  const make = (row) => {
    const spread = isServing ? { tp: row.count ?? 1 } : row.count > 1 && !isSpread ? { sharding: "fsdp", data: row.count } : {};
    const name = makeElement("th", { scope: "row" }, makeSetter(row.gpu, { gpu: row.gpu, ...spread }, `Take ${row.gpu}`));
    const rest = isServing ? [formatCount(row.users)] : [formatBytes(row.high_bytes), row.count ? formatBytes(row.headroom_bytes) : "does not fit"];
    const most = isServing ? "over 8" : isSpread ? "more" : "over 64";
    const cells = numbers(row.count ? String(row.count) : most, formatBytes(row.capacity_bytes), ...rest);
    if (!isServing) cells[2].classList.add("needs");
    return makeElement("tr", { "aria-current": row.gpu === state.gpu ? "true" : null, class: row.count ? "" : "quiet" }, name, ...cells);
  };
  const few = rows.filter((row, index) => (index < FEW && row.count) || row.gpu === state.gpu);
  const table = makeTable(heads, few.map(make));
  const scroll = makeElement("div", { class: "scroll" }, table);
  const fitting = rows.filter((row) => row.count && (isSpread || row.count === 1)).length;
  const several = isSpread ? 0 : rows.filter((row) => row.count > 1).length;
  const others = several ? `; of ${several} others it takes more than one, ${isServing ? "which share every layer" : "sharded with ZeRO-3"}` : "";
  const line = makeElement("p", { class: "quiet" }, `${fitting} of the ${rows.length} GPUs hold it ${isSpread ? "in this layout" : "alone"}${others}. Choose a name to take it.`);
  const more = makeElement("button", { type: "button", onclick: () => { table.tBodies[0].replaceChildren(...rows.map(make)); more.remove(); } }, `Show all ${rows.length}`);
  return makeElement("div", {}, line, scroll, rows.length > few.length ? more : "");
}

/** The largest value of each control with which all fits. */
function makeLargest(rows, state) {
  const line = ({ knob, value, gpu, high_bytes: high }) => {
    const now = state[knob] === value ? [makeElement("span", { class: "quiet" }, "set now")] : value ? [makeSetter("take it", { [knob]: value }, `Take ${value} as ${NAMES[knob]}`)] : [];
    const found = value === null ? [`none: even 1 needs ${formatBytes(high)} of ${gpu}`] : [makeElement("b", {}, formatCount(value)), `, which needs ${formatBytes(high)} `];
    return [makeElement("dt", {}, NAMES[knob]), makeElement("dd", {}, ...found, ...now)];
  };
  return makeElement("div", {}, makeElement("p", { class: "quiet" }, "Each alone, with the rest as it is set. Even the upper end of what it needs fits."), makeElement("dl", {}, ...rows.flatMap(line)));
}

/** Changes that save memory; those that leave the training as it is first. */
function makeKnobs(rows) {
  if (!rows.length) return makeElement("p", { class: "quiet" }, "Nothing that ullage knows of would save memory here.");
  const most = Math.max(...rows.map((row) => row.saved_bytes));
  const make = ({ name, saved_bytes: saved, more_compute: more, remark }) => {
    const bar = makeElement("div", { class: "rate", "aria-hidden": "true" });
    bar.style.width = `${(100 * saved) / most}%`;
    const percent = 100 * more;
    const price = percent < 0.5 ? "free" : formatBytes(saved / percent);
    return makeElement("tr", {}, makeElement("th", { scope: "row" }, name, makeElement("span", { class: "note" }, remark)),
      ...numbers(formatBytes(saved), `${percent < 0 ? "−" : "+"}${Math.abs(percent).toFixed(0)} %`, price), makeElement("td", { class: "drawn" }, bar));
  };
  return makeElement("div", { class: "scroll" }, makeTable(["change", "saves", "compute", "for each %", ""], rows.map(make)));
}
