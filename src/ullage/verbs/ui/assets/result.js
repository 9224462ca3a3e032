// The answer: a verdict in words, the memory as bars, and its parts as a table.

import { showCache } from "./cache.js";

const CLOSE = 0.05; // less of the GPU than this left is close
const [MARK_WIDTH, NAME_WIDTH, TICK_WIDTH] = [14, 100, 84]; // pixels that a number, a name, a tick take
const AROUND = { context: "context", "cached blocks": "cache" };

/** Black or white, whichever can be read on a colour. */
export function inkOn(color) {
  const [r, g, b] = parseColor(color).map((one) => (one / 255 <= 0.04045 ? one / 255 / 12.92 : ((one / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

export class Result {
  constructor(catalogue) {
    this.looks = catalogue.looks;
    this.parts = Object.fromEntries(["verdict", "problem", "bars", "terms", "answer", "basis", "cache"].map((id) => [id, document.getElementById(id)]));
  }

  /** Shows why there is no answer, and leaves the last one, paler. */
  showProblem(text) {
    const { problem, answer, verdict } = this.parts;
    if (text !== null && !answer.classList.contains("answered")) verdict.replaceChildren(makeElement("p", { class: "headline" }, "No answer"));
    problem.hidden = text === null;
    if (problem.textContent !== (text ?? "")) problem.textContent = text ?? "";
    answer.classList.toggle("stale", text !== null);
  }

  /** Shows what training needs; `run` is the device of a run document that goes with it, or null,
   * and `assumptions` are those of that run. */
  showTraining(found, run, assumptions) {
    const left = found.headroom_bytes;
    const isClose = left >= 0 && left < CLOSE * found.capacity_bytes;
    const words = { fits: isClose ? ["Fits, just", "close"] : ["Fits", "fits"], may_fit: ["May fit", "close"], does_not_fit: ["Does not fit", "over"] };
    const [word, kind] = words[found.verdict] ?? ["Needs more", "over"];
    const rest = left < 0 ? `up to ${formatBytes(-left)} short` : `at least ${formatBytes(left)} left`;
    const where = found.peak.section ? `${found.peak.phase} (${found.peak.section})` : found.peak.phase;
    this._showVerdict(word, kind, `${rest} of ${formatBytes(found.capacity_bytes)} on ${found.gpu}`,
      `Needs ${formatBytes(found.used_bytes)}, between ${formatBytes(found.used_low_bytes)} and ${formatBytes(found.used_high_bytes)}. `
      + `The peak is in ${where}. ${formatCount(found.model.num_parameters)} parameters.`
      + (found.host_bytes ? ` ${formatBytes(found.host_bytes)} of host memory for each rank${found.disk_bytes ? `, ${formatBytes(found.disk_bytes)} of NVMe` : ""}.` : ""));
    const parts = found.terms.map((term) => ({ ...term, key: keyOf(term) }));
    const measured = run && measure(run);
    this._showBars({ ...found, parts, interval: [found.used_low_bytes, found.used_high_bytes] }, measured);
    this._showTerms(parts, found.used_bytes, "in use", measured);
    this._showBasis(found.assumptions, parts, assumptions);
  }

  /** Shows what serving needs, and how many users there is room for; `engine` is what a real vLLM
   * says of the same, or null. */
  showServing(found, engine) {
    const [word, kind] = { fits: ["Fits", "fits"], may_fit: ["May fit", "close"], does_not_fit: ["Does not fit", "over"] }[found.verdict];
    const room = found.users[1] ? `room for ${formatNumberOf(found.users[1], "user")}` : "no room for a user";
    this._showVerdict(word, kind, `${room} of ${formatCount(found.plan.context)} tokens on ${found.gpu}`,
      `${found.reason[0].toUpperCase()}${found.reason.slice(1)}. ${formatCount(found.model.num_parameters)} parameters.`);
    const parts = found.terms.map((term) => ({ ...term, key: term.name in this.looks ? term.name : "unattributed", bytes: Math.max(0, term.bytes) }));
    parts.sort((a, b) => (a.key === "left free") - (b.key === "left free"));
    this._showBars({ ...found, parts, interval: null }, null);
    const whole = sum(parts); // more than the GPU has, where nothing is left for the cache
    this._showTerms(parts, whole, whole > found.capacity_bytes ? "needed" : "the GPU", null);
    showCache(this.parts.cache, found, engine);
    this._showBasis(found.remarks, parts, []);
  }

  _showVerdict(word, kind, small, rest) {
    this.parts.answer.classList.add("answered");
    this.parts.verdict.replaceChildren(makeElement("p", { class: `headline ${kind}` }, word, makeElement("small", {}, small)), makeElement("p", {}, rest));
  }

  _showBars(found, measured) {
    const segments = found.parts.map((part, index) => ({ label: part.name, bytes: part.bytes, key: part.key, mark: String(index + 1) }));
    const scale = { top: Math.max(found.capacity_bytes, sum(segments), found.interval?.[1] ?? 0, measured ? sum(measured) : 0), width: this.parts.bars.clientWidth };
    const bars = [this._bar("Estimate", segments, found, scale)];
    if (measured) {
      const marks = new Map(segments.map((one) => [one.key, one.mark]));
      const others = measured.map((one) => ({ ...one, label: this.looks[one.key].label, mark: marks.get(one.key) ?? "" }));
      bars.unshift(makeElement("div", { class: "bar-name" }, "estimate"));
      bars.push(makeElement("div", { class: "bar-name" }, "phantom"), this._bar("Phantom", others, { ...found, interval: null }, scale));
    }
    this.parts.bars.replaceChildren(...bars, makeRule(found, scale));
  }

  _bar(title, segments, { interval, gpu, capacity_bytes: capacity }, { top, width }) {
    const share = (bytes) => `${(100 * bytes) / top}%`;
    const bar = makeElement("div", { class: "bar", role: "img", "aria-label": `${title}: ${segments.map((one) => `${one.label} ${formatBytes(one.bytes)}`).join(", ")}` });
    let at = 0;
    for (const one of segments.filter((each) => each.bytes > 0)) {
      const pixels = (width * one.bytes) / top;
      const text = pixels < MARK_WIDTH ? "" : pixels > NAME_WIDTH ? `${one.mark} ${one.label}` : one.mark;
      const part = makeElement("div", { class: "part", title: `${one.label}: ${formatBytes(one.bytes)}` }, text);
      const { color } = this.looks[one.key];
      Object.assign(part.style, { left: share(at), width: share(one.bytes), background: color, color: inkOn(color) });
      bar.append(part);
      at += one.bytes;
    }
    if (interval) {
      const mark = makeElement("div", { class: "interval", title: `between ${formatBytes(interval[0])} and ${formatBytes(interval[1])}` });
      Object.assign(mark.style, { left: share(interval[0]), width: share(interval[1] - interval[0]) });
      bar.append(mark);
    }
    const limit = makeElement("div", { class: "limit", title: `${gpu}: ${formatBytes(capacity)}` });
    limit.style.left = `calc(${share(capacity)} - 2px)`;
    return makeElement("div", { class: "bar-box" }, bar, limit);
  }

  _showTerms(parts, whole, total, measured) {
    const [head, body] = [this.parts.terms.tHead, this.parts.terms.tBodies[0]];
    const column = (text, kind = "number") => makeElement("th", { scope: "col", class: kind }, text);
    head.replaceChildren(makeElement("tr", {}, column(measured ? "at the peak" : "part", ""), column("estimate"), column("share"),
      ...(measured ? [column("phantom"), column("difference")] : []), column("what it is", "what")));
    const cell = (text) => makeElement("td", { class: "number" }, text);
    const row = (title, bytes, other, what) => makeElement("tr", {}, title,
      cell(bytes === null ? "–" : formatBytes(bytes)), cell(bytes === null ? "" : `${((100 * bytes) / whole).toFixed(1)} %`),
      ...(measured ? [cell(formatBytes(other)), cell(formatDifference(bytes ?? 0, other))] : []), makeElement("td", { class: "what" }, what));
    const found = new Map(measured?.map((one) => [one.key, one.bytes]));
    const rows = parts.map((part, index) => row(this._title(part.key, part.name, String(index + 1)), part.bytes, found.get(part.key) ?? 0, describe(part)));
    for (const part of parts) found.delete(part.key);
    for (const [key, bytes] of found) if (bytes) rows.push(row(this._title(key, this.looks[key].label, "·"), null, bytes, "not in the estimate"));
    const last = row(makeElement("th", { scope: "row" }, total), whole, measured ? sum(measured) : 0, "");
    last.className = "total";
    body.replaceChildren(...rows, last);
  }

  _title(key, name, mark) {
    const swatch = makeElement("span", { class: "swatch", "aria-hidden": "true" }, mark);
    const { color } = this.looks[key];
    Object.assign(swatch.style, { background: color, color: inkOn(color) });
    return makeElement("th", { scope: "row" }, swatch, name);
  }

  _showBasis(assumptions, parts, ofTheRun) {
    this.parts.basis.lastElementChild.replaceChildren(
      makeList("Taken for granted", assumptions), makeList("Where each part comes from", parts.map((part) => `${part.name}: ${part.source}`)),
      makeList("Assumed by the phantom", ofTheRun));
  }
}

const sum = (segments) => segments.reduce((total, one) => total + one.bytes, 0);

/** Which look a term of training has: its category's, or that of what surrounds tensors. */
const keyOf = ({ category, name }) => (category === "unattributed" ? AROUND[name] ?? category : category);

/** What the phantom has of each part: blocks by category, what the allocator held beside them, and
 * what is outside of it. */
function measure(run) {
  const owners = Object.entries(run.at_peak).map(([key, bytes]) => ({ key, bytes }));
  return [...owners, { key: "cache", bytes: run.peak_reserved_bytes - run.peak_allocated_bytes }, { key: "context", bytes: run.peak_used_bytes - run.peak_reserved_bytes }];
}

/** The estimate above or below what the phantom has. */
function formatDifference(bytes, measured) {
  const difference = bytes - measured;
  if (difference === 0) return "equal";
  const sign = difference < 0 ? "−" : "+";
  const percent = Math.abs((100 * difference) / measured);
  const share = bytes && measured && percent >= 0.05 ? ` (${sign}${percent.toFixed(1)} %)` : "";
  return `${sign}${formatBytes(Math.abs(difference))}${share}`;
}

function describe(part) {
  const [low, high] = [Math.max(0, part.low_bytes), Math.max(0, part.high_bytes)];
  return (low === high ? "" : `${formatBytes(low)} to ${formatBytes(high)}: `) + part.what;
}

function makeList(title, lines) {
  if (!lines.length) return "";
  return makeElement("section", {}, makeElement("h3", {}, title), makeElement("ul", {}, ...lines.map((one) => makeElement("li", {}, one))));
}

/** The axis below the bars. */
function makeRule({ gpu, capacity_bytes: limit }, { top, width }) {
  const rule = makeElement("div", { class: "rule", "aria-hidden": "true" });
  const place = (tag, bytes, text) => {
    const element = makeElement(tag, {}, text);
    element.style.left = `${(100 * bytes) / top}%`;
    return element;
  };
  const label = place("span", limit, `${gpu} ${formatBytes(limit)}`);
  const isLast = limit > 0.75 * top;
  if (isLast) label.classList.add("last");
  const room = ((isLast ? 2 : 1) * TICK_WIDTH * top) / width; // that the label takes to its left
  for (const tick of makeTicks(0, top, Math.min(6, width / TICK_WIDTH / 1.5), { isBinary: true })) {
    if (tick > limit - room && tick < limit + (TICK_WIDTH * top) / width) continue;
    rule.append(place("span", tick, formatTick(tick)), place("i", tick, ""));
  }
  rule.append(label);
  return rule;
}
