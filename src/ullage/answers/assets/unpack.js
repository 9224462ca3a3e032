// Columns as verbs/page/columns.py packs them: base64, deflate, then a header and the columns.

/** The header and the columns of a run. */
async function unpackRun(text) {
  const binary = atob(text);
  const packed = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) packed[i] = binary.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const body = new Uint8Array(await new Response(stream).arrayBuffer());
  const headerEnd = 4 + new DataView(body.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(body.subarray(4, headerEnd)));
  const columns = {};
  let offset = headerEnd;
  for (const spec of header.columns) {
    const numStored = spec.first === undefined ? spec.count : spec.count - 1;
    columns[spec.name] = unpackColumn(body.subarray(offset, offset + numStored * spec.width), spec);
    offset += numStored * spec.width;
  }
  return { header, columns };
}

function unpackColumn(planes, { count, width, base, first, is_wide: isWide }) {
  const values = isWide ? new Float64Array(count) : new Int32Array(count);
  const skip = first === undefined ? 0 : 1;
  const numStored = count - skip;
  const [one, two, three] = [numStored, 2 * numStored, 3 * numStored];
  for (let i = 0; i < numStored; i++) {
    let value = planes[i];
    if (width > 1) value += planes[one + i] * 256;
    if (width > 2) value += planes[two + i] * 65536 + planes[three + i] * 16777216;
    for (let plane = 4; plane < width; plane++) value += planes[plane * numStored + i] * 256 ** plane;
    values[i + skip] = value + base;
  }
  if (skip) {
    values[0] = first;
    for (let i = 1; i < count; i++) values[i] += values[i - 1];
  }
  return values;
}
