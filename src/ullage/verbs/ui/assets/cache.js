// The KV cache of a server: what it holds, and what a real vLLM says of the same bytes.

const EQUAL = "equal";

/** Shows a serving estimate's cache; `engine` is the answer of vLLM that goes with it, or null. */
export function showCache(element, found, engine) {
  const groups = found.kv_groups.filter((one) => one.request_bytes);
  element.replaceChildren(makeElement("h2", {}, "The KV cache"),
    makeElement("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The KV cache" }, makeRoom(found, engine)),
    engine ? makeElement("p", { class: "quiet" }, `Both lay out the likely ${formatBytes(found.kv_bytes[1])}. Whether this much is left on the ${found.gpu}, vLLM can say only there.`) : "",
    makeElement("h3", {}, "What the layers keep"),
    groups.length ? makeGroups(groups) : makeElement("p", { class: "quiet" }, "Nothing from one step to the next: this model keeps no cache."));
}

function makeRoom(found, engine) {
  const answer = engine?.answers[0] ?? {};
  const whole = (number) => formatCount(number);
  const rows = [
    [`blocks of ${formatNumberOf(found.block_size, "token")}`, found.num_blocks, answer.num_blocks, whole],
    ["tokens, as it prints them", found.tokens, answer.tokens, whole],
    [`requests of ${formatCount(found.plan.context)} tokens`, found.concurrency, answer.concurrency, (number) => number.toFixed(2)],
    ["longest context of one user", found.longest, undefined, whole],
  ];
  const heads = ["", "at least", "likely", "at most", ...(engine ? [`vLLM ${engine.vllm}`, "difference"] : [])];
  const column = (text, index) => makeElement("th", { scope: "col", class: index ? `number ${text.replaceAll(" ", "-")}` : "" }, text);
  const cell = (text, kind = "") => makeElement("td", { class: `number ${kind}` }, text);
  const body = rows.map(([name, [low, likely, high], real, format]) => {
    const cells = [cell(format(low), "at-least"), cell(format(likely)), cell(format(high), "at-most")];
    if (engine) cells.push(cell(real === undefined ? "–" : format(real)), cell(real === undefined ? "" : compare(likely, real, format), real === likely ? "same" : ""));
    return makeElement("tr", {}, makeElement("th", { scope: "row" }, name), ...cells);
  });
  return makeElement("table", { id: "room", class: engine ? "checked" : "" }, makeElement("thead", {}, makeElement("tr", {}, ...heads.map(column))), makeElement("tbody", {}, ...body));
}

function compare(likely, real, format) {
  if (likely === real) return EQUAL;
  return `${likely < real ? "−" : "+"}${format(Math.abs(likely - real))}`;
}

function makeGroups(groups) {
  const facts = groups.flatMap((one) => [
    makeElement("dt", {}, formatNumberOf(one.num_layers, "layer")),
    makeElement("dd", {}, `${one.name}: ${formatBytes(one.token_bytes)} a token, ${formatBytes(one.request_bytes)} a user`),
  ]);
  const total = formatBytes(groups.reduce((sum, one) => sum + one.request_bytes, 0));
  return makeElement("dl", {}, ...facts, makeElement("dt", {}, "together"), makeElement("dd", {}, `${total} a user`));
}
