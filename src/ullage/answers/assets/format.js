// Numbers for people.

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** "12.3 GiB"; the same rule as ullage.ground.units.format_bytes. */
function formatBytes(bytes) {
  if (bytes < 0) return `-${formatBytes(-bytes)}`;
  if (bytes < 1024) return `${bytes} B`;
  let power = Math.min(Math.floor(Math.log2(bytes) / 10), BYTE_UNITS.length - 1);
  if (Number((bytes / 1024 ** power).toFixed(1)) >= 1024 && power < BYTE_UNITS.length - 1) power += 1;
  return `${(bytes / 1024 ** power).toFixed(1)} ${BYTE_UNITS[power]}`;
}

/** Bytes on a scale, without digits that say nothing: "1.25 GiB", "2 GiB". */
function formatTick(bytes) {
  const power = bytes < 1024 ? 0 : Math.min(Math.floor(Math.log2(bytes) / 10), BYTE_UNITS.length - 1);
  return `${Number((bytes / 1024 ** power).toFixed(3))} ${BYTE_UNITS[power]}`;
}

const formatCount = (number) => number.toLocaleString("en-US");

/** "1 event", "2 events". */
const formatNumberOf = (number, noun) => `${formatCount(number)} ${noun}${number === 1 ? "" : "s"}`;

const formatAddress = (address) => `0x${address.toString(16)}`;

/** A duration with the digits that a step of so many seconds needs. */
function formatSeconds(seconds, step = seconds / 100) {
  const size = Math.abs(step) || 1;
  if (size >= 1) return `${formatCount(Math.round(seconds))} s`;
  if (size >= 1e-4) return `${seconds.toFixed(Math.min(4, Math.ceil(-Math.log10(size))))} s`;
  return `${formatCount(Math.round(seconds * 1e6))} µs`;
}

/** Round numbers between low and high, about so many; of bytes round means powers of two. */
function makeTicks(low, high, count, { isBinary = false, isWhole = false } = {}) {
  const rough = (high - low) / Math.max(count, 1);
  if (!(rough > 0)) return [];
  let step = isBinary ? 2 ** Math.ceil(Math.log2(rough)) : 10 ** Math.floor(Math.log10(rough));
  if (!isBinary) step *= [1, 2, 5, 10].find((factor) => factor * step >= rough) ?? 10;
  if (isWhole) step = Math.max(1, Math.round(step));
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push(tick + 0); // + 0: no "-0"
  return ticks;
}

/** A new element: makeElement("button", {class: "tab"}, "text", child). */
function makeElement(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** Red, green and blue of "#rrggbb", 0 to 255 each. */
function parseColor(text) {
  const number = Number.parseInt(text.trim().slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

const sumOf = (values) => values.reduce((sum, value) => sum + value, 0);

/** The first place in a sorted array whose value is not below the given one. */
function lowerBound(values, value, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
