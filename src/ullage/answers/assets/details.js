// The column at the side: the legend, a block with its stack, a moment, what a search found.

/** What the colours mean, with the bytes of each after an event. */
function legendOf(run, levels, event) {
  const bytes = levels.after(event);
  const total = sumOf(bytes);
  const rows = run.grouping.groups.map((group, i) => ({ ...group, bytes: bytes[i] }));
  const moment = event === run.header.peak_event ? "At the peak" : `After event ${formatCount(event)}`;
  return [
    makeElement("h2", {}, moment),
    makeElement("table", { class: "legend" },
      ...rows.filter((row) => row.bytes > 0).sort((a, b) => b.bytes - a.bytes).map((row) =>
        legendRow(row, formatBytes(row.bytes), `${total ? Math.round((100 * row.bytes) / total) : 0} %`),
      ),
      legendRow({ label: "live", class: "total" }, formatBytes(total)),
      legendRow({ label: "reserved" }, formatBytes(levels.reservedAfter(event))),
    ),
  ];
}

function legendRow({ color, label, class: kind }, amount, share = "") {
  return makeElement("tr", { class: kind },
    makeElement("td", {}, color && swatch(color)),
    makeElement("td", { class: "label", title: label }, withoutFolders(label)),
    makeElement("td", { class: "number" }, amount), makeElement("td", { class: "number" }, share),
  );
}

/** A call site without the folders of its file, which push the line out of sight. */
const withoutFolders = (site) => site.replace(/^[^ ]*\//, "");

function swatch(color) {
  const element = makeElement("span", { class: "swatch" });
  element.style.background = color;
  return element;
}

/** All that is known of a block. */
function blockDetails(run, block) {
  const { columns, header } = run;
  const bytes = run.bytes(block);
  const [birth, death] = [run.birth[block], run.death[block]];
  const group = run.groupOf(block);
  const span = columns.time ? formatSeconds(run.seconds(death) - run.seconds(birth)) : null;
  const isBefore = birth < 0;
  const isAtEnd = death >= run.numEvents;
  const rows = [
    ["size", formatBytes(bytes), `${formatCount(bytes)} bytes${columns.is_exact[block] ? "" : ", at least"}`],
    ["requested", formatBytes(bytes - columns.rounding[block])],
    ["rounding", formatBytes(columns.rounding[block])],
    ["born", isBefore ? "before the first event" : `event ${formatCount(birth)}`],
    ["freed", isAtEnd ? "live at the end" : `event ${formatCount(death)}`],
    ["life", `${formatCount(death - Math.max(birth, 0))} events${span ? `, ${span}` : ""}`],
    ["address", formatAddress(run.address(block))],
    ["stream", String(header.streams[columns.stream[block]])],
    [run.grouping.label, group.label],
  ];
  if (run.module(block)) rows.push(["module", run.module(block)]);
  return [
    makeElement("h2", {}, swatch(group.color), ` Block of ${formatBytes(bytes)}`),
    factList(rows),
    ...stackDetails(run, columns.stack[block]),
  ];
}

function factList(rows) {
  return makeElement("dl", {}, ...rows.flatMap(([label, value, title]) => [
    makeElement("dt", {}, label), makeElement("dd", { title: title ?? value }, value),
  ]));
}

/** A stack, innermost first; the frames of torch and C++ are folded unless there are no others. */
function stackDetails(run, stack) {
  const frames = run.frames(stack);
  if (frames.length === 0) return [makeElement("p", { class: "empty" }, "No stack was recorded.")];
  const isOwn = (frame) => frame.rank <= 1;
  const shown = frames.some(isOwn) ? isOwn : () => true;
  const list = makeElement("ol", { class: "stack" });
  let folded = [];
  const unfold = () => {
    if (folded.length === 0) return;
    const rows = folded.map((frame) => frameRow(frame));
    list.append(makeElement("li", { class: "folded" },
      makeElement("details", {}, makeElement("summary", {}, `${rows.length} of torch, Python and C++`),
        makeElement("ol", { class: "stack" }, ...rows))));
    folded = [];
  };
  for (const frame of frames) {
    if (shown(frame)) {
      unfold();
      list.append(frameRow(frame));
    } else folded.push(frame);
  }
  unfold();
  return [makeElement("h3", {}, "Stack, innermost first"), list];
}

function frameRow(frame) {
  const isNamed = frame.file !== "" && frame.file !== "??";
  const where = isNamed ? `${shortPath(frame.file)}${frame.line ? `:${frame.line}` : ""}` : "";
  const title = `${frame.file}:${frame.line}\n${frame.function}`;
  return makeElement("li", { class: `rank${frame.rank}`, title },
    makeElement("span", { class: "function" }, frame.function), " ",
    makeElement("span", { class: "where" }, where));
}

/** What a search came to. */
function searchDetails(text, found, onStep) {
  if (found.blocks.length === 0) {
    const why = `No stack or module has "${text.trim()}" in it.`;
    return [makeElement("h2", {}, "Nothing found"), makeElement("p", {}, why)];
  }
  const sites = [...found.sites].sort((a, b) => b[1] - a[1]).slice(0, 12);
  const most = `${formatBytes(found.highest)} after event ${formatCount(found.event)}`;
  const row = ([site, bytes]) => makeElement("tr", {},
    makeElement("td", { class: "label", title: site }, withoutFolders(site)),
    makeElement("td", { class: "number" }, formatBytes(bytes)));
  return [
    makeElement("h2", {}, `${formatNumberOf(found.blocks.length, "block")} with "${text.trim()}"`),
    makeElement("dl", {},
      makeElement("dt", {}, "allocated, in all"), makeElement("dd", {}, formatBytes(found.bytes)),
      makeElement("dt", {}, "most at once"), makeElement("dd", {}, most)),
    makeElement("p", {},
      makeElement("button", { onclick: () => onStep(-1), title: "p" }, "previous"), " ",
      makeElement("button", { onclick: () => onStep(1), title: "n" }, "next"), " largest first"),
    makeElement("table", { class: "legend" }, ...sites.map(row)),
  ];
}

/** Findings and notes, as the caller gave them. */
function findingsOf(run) {
  const { findings, notes, contradictions, summary } = run.header;
  const remarks = [...contradictions, ...notes].map((note) => makeElement("p", {}, note));
  return [
    remarks.length > 0
      ? makeElement("div", { class: contradictions.length > 0 ? "notes warning" : "notes" }, makeElement("h2", {}, contradictions.length > 0 ? "Read this first" : "About this file"), ...remarks)
      : null,
    findings.length === 0 ? makeElement("p", { class: "empty" }, "No findings.") : null,
    ...findings.map(findingArticle),
    makeElement("table", { class: "facts" }, ...summary.map(([label, value]) =>
      makeElement("tr", {}, makeElement("th", { scope: "row" }, label), makeElement("td", {}, value)))),
  ].filter((part) => part !== null);
}

function findingArticle(finding) {
  return makeElement("article", { class: "finding" },
    makeElement("header", {},
      makeElement("code", {}, finding.code), makeElement("h2", {}, finding.title),
      makeElement("span", { class: "gain" }, finding.bytes == null ? "" : formatBytes(finding.bytes))),
    ...finding.text.split("\n\n").map((part) => makeElement("p", {}, part)));
}
