// Finds the blocks whose stack, module or call site has a text in it.

/** Marks the blocks that match and says what they come to; null if the text is empty. */
function findBlocks(run, text) {
  const wanted = text.trim().toLowerCase();
  if (wanted === "") {
    run.mark.fill(0);
    return null;
  }
  const stacks = matchingStacks(run, wanted);
  const modules = run.header.modules.map((path) => path.toLowerCase().includes(wanted));
  const { stack, module } = run.columns;
  const found = { blocks: [], bytes: 0, sites: new Map() };
  for (let i = 0; i < run.numBlocks; i++) {
    const isMatch = stacks[stack[i]] === 1 || (module !== undefined && modules[module[i]]);
    run.mark[i] = isMatch ? 2 : 1;
    if (!isMatch) continue;
    const bytes = run.bytes(i);
    found.blocks.push(i);
    found.bytes += bytes;
    const site = run.site(i);
    found.sites.set(site, (found.sites.get(site) ?? 0) + bytes);
  }
  return { ...found, ...highestOf(run, found.blocks) };
}

function matchingStacks(run, wanted) {
  const { stack_start: start, stack_frame: frame, frame_file: file } = run.columns;
  const { frame_function: name, frame_line: line } = run.columns;
  const inFile = run.header.files.map((text) => text.toLowerCase().includes(wanted));
  const inName = run.header.functions.map((text) => text.toLowerCase().includes(wanted));
  const hasLine = /:\d+$/.test(wanted); // "train.py:31"
  const isMatch = (number) =>
    inFile[file[number]] || inName[name[number]] ||
    (hasLine && `${run.header.files[file[number]]}:${line[number]}`.toLowerCase().endsWith(wanted));
  const matches = Uint8Array.from(file, (_, number) => (isMatch(number) ? 1 : 0));
  const stacks = new Uint8Array(start.length - 1);
  for (let i = 0; i < stacks.length; i++) {
    for (let place = start[i]; place < start[i + 1] && !stacks[i]; place++) stacks[i] = matches[frame[place]];
  }
  return stacks;
}

/** The most that so many blocks held at once, and after which event. */
function highestOf(run, blocks) {
  let now = 0;
  for (const block of blocks) if (run.birth[block] < 0) now += run.bytes(block);
  let [highest, event] = [now, -1];
  for (let i = 0; i < run.numEvents; i++) {
    const change = run.blockOfEvent[i];
    if (change === 0 || run.mark[Math.abs(change) - 1] !== 2) continue;
    now += Math.sign(change) * run.bytes(Math.abs(change) - 1);
    if (now > highest) [highest, event] = [now, i];
  }
  return { highest, event };
}
