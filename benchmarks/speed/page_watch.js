// Put into a page before its own scripts: moves the view by the events that a hand would make.

window.watched = {};

function mapEvents() {
  const map = document.querySelector("canvas.map");
  const box = map.getBoundingClientRect();
  map.setPointerCapture = () => {}; // made-up pointers cannot be captured
  const at = (x, y) => ({
    clientX: box.left + x * box.width, clientY: box.top + y * box.height, bubbles: true,
    cancelable: true, pointerId: 1, button: 0, buttons: 1,
  });
  return {
    wheel: (deltaY, shiftKey = false) =>
      map.dispatchEvent(new WheelEvent("wheel", { ...at(0.4, 0.5), deltaY, shiftKey })),
    pointer: (kind, x, y) => map.dispatchEvent(new PointerEvent(`pointer${kind}`, at(x, y))),
  };
}

/** Everything into view, then a share of it. */
window.watched.show = (share) => {
  document.getElementById("fit").click();
  mapEvents().wheel(Math.log(share) / 0.0015);
};

/** Makes a movement for so many frames; returns the gaps between them in ms. */
window.watched.move = (kind, numFrames) => new Promise((resolve) => {
  const { wheel, pointer } = mapEvents();
  const acts = {
    in: () => wheel(-60),
    out: () => wheel(60),
    drag: (i) => pointer("move", 0.5 + 0.4 * Math.sin(i / 9), 0.5),
    addresses: (i) => wheel(i < numFrames / 2 ? -60 : 60, true),
  };
  const gaps = [];
  let last = null;
  let count = 0;
  if (kind === "drag") pointer("down", 0.5, 0.5);
  const tick = (now) => {
    if (last !== null) gaps.push(now - last);
    last = now;
    if (count === numFrames) {
      if (kind === "drag") pointer("up", 0.5, 0.5);
      resolve(gaps);
      return;
    }
    acts[kind](count++);
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
});

/** Does the same sum in each of so many frames; returns the gaps between them in ms. */
window.watched.compute = (numFrames) => new Promise((resolve) => {
  const gaps = [];
  let last = null;
  const tick = (now) => {
    if (last !== null) gaps.push(now - last);
    last = now;
    let sum = 0;
    for (let i = 0; i < 1.2e6; i++) sum = (sum + i) | 0;
    window.watched.sum = sum;
    document.dispatchEvent(new Event("moved")); // what tells frames apart in the trace
    if (gaps.length === numFrames) resolve(gaps);
    else requestAnimationFrame(tick);
  };
  document.addEventListener("moved", () => {});
  requestAnimationFrame(tick);
});
