// The check on the phantom: starts it, says how far it is, and hands its result on.

import { ask, post } from "./ask.js";

const POLL_MS = 500;
const PROGRESS = /^step (\d+) allocated (\d+)$/;

export class PhantomCheck {
  constructor({ query, onResult }) {
    this.query = query;
    this.onResult = onResult;
    this.parts = Object.fromEntries(["start", "cancel", "progress", "error"].map((name) => [name, document.getElementById(`check-${name}`)]));
    this.parts.start.addEventListener("click", () => this._start());
    this.parts.cancel.addEventListener("click", () => this._ask(post("/check/cancel", {})));
  }

  async _start() {
    let query;
    try {
      query = this.query();
    } catch (error) {
      this._fail(error.message);
      return;
    }
    this.asked = JSON.stringify(query);
    this._fail(null);
    this.onResult(null, this.asked);
    this.started = performance.now();
    await this._ask(post("/check", query));
    this.parts.cancel.focus();
  }

  async _ask(answer) {
    try {
      this._show(await answer);
    } catch (error) {
      this._show({ running: false, error: error.message });
    }
  }

  _show(state) {
    const { start, cancel, progress } = this.parts;
    const hadFocus = document.activeElement === cancel;
    start.disabled = state.running;
    cancel.hidden = !state.running;
    if (hadFocus && !state.running) start.focus();
    clearTimeout(this.timer);
    if (state.running) {
      const step = PROGRESS.exec(state.progress ?? "");
      const seconds = Math.round((performance.now() - this.started) / 1000);
      progress.textContent = step ? `step ${Number(step[1]) + 1} done, ${formatBytes(Number(step[2]))} allocated` : `starting, ${seconds} s`;
      this.timer = setTimeout(() => this._ask(ask("/check")), POLL_MS);
      return;
    }
    progress.textContent = state.document ? tell(state.document) : "";
    this._fail(state.error ?? null);
    if (state.document && !state.error) this.onResult(state.document, this.asked);
  }

  _fail(text) {
    this.parts.error.hidden = text === null;
    this.parts.error.textContent = text ?? "";
  }
}

/** What a run came to, in a line. */
function tell(run) {
  const device = run.devices[0];
  if (run.verdict === "out_of_memory") return `The phantom ran out of memory, with PyTorch ${run.torch}.`;
  return device ? `Checked with PyTorch ${run.torch}: ${formatBytes(device.peak_used_bytes)} in use.` : "The program used no GPU.";
}
