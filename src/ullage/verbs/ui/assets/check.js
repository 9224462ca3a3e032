// The check with a real engine, PyTorch on the phantom or vLLM: starts it, says how far it is, and
// hands its result on.

import { ask, post } from "./ask.js";

const POLL_MS = 500;
const PROGRESS = /^step (\d+) allocated (\d+)$/;

const WORDS = {
  training: ["Check on the phantom", "Three steps of this loop in real PyTorch, on a GPU that is not there."],
  serving: ["Check with the real vLLM", "Its own code lays out the cache, with the likely bytes; without weights, on this machine's CPU."],
};

export class EngineCheck {
  constructor({ query, vllmProblem, onResult }) {
    this.query = query;
    this.vllmProblem = vllmProblem;
    this.onResult = onResult;
    this.parts = Object.fromEntries(["start", "cancel", "progress", "error"].map((name) => [name, document.getElementById(`check-${name}`)]));
    this.parts.start.addEventListener("click", () => this._start());
    this.parts.cancel.addEventListener("click", () => this._ask(post("/check/cancel", {})));
  }

  /** The answer that is shown is another: what the button does, and what it last said of it. */
  follow(found, query) {
    const { start, progress } = this.parts;
    const [name, what] = WORDS[found.kind];
    const problem = found.kind === "serving" ? this._problemOfServer(found.plan) : problemOfLoop(found.recipe);
    start.textContent = name;
    this.cannot = problem !== null;
    if (this.isRunning) return;
    start.disabled = this.cannot;
    if (query === this.asked && !this.cannot) return;
    this._fail(null);
    progress.replaceChildren(...formatCode(problem ?? what));
    this.asked = null;
  }

  _problemOfServer({ engine }) {
    return engine === "vllm" ? this.vllmProblem : "Of engines, vLLM alone is checked from here.";
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
    this.isRunning = state.running;
    start.disabled = state.running || this.cannot;
    cancel.hidden = !state.running;
    if (hadFocus && !state.running) start.focus();
    clearTimeout(this.timer);
    if (state.running) {
      const step = PROGRESS.exec(state.progress ?? "");
      const seconds = Math.round((performance.now() - this.started) / 1000);
      progress.textContent = step ? `step ${Number(step[1]) + 1} done, ${formatBytes(Number(step[2]))} allocated` : `${state.progress ?? "starting"}, ${seconds} s`;
      this.timer = setTimeout(() => this._ask(ask("/check")), POLL_MS);
      return;
    }
    progress.textContent = state.document ? tell(state.document) : "";
    const refusal = state.document?.answers?.[0].error;
    this._fail(state.error ?? (refusal ? `vLLM ${state.document.vllm} does not start: ${refusal}` : null));
    if (state.document && !state.error && !refusal) this.onResult(state.document, this.asked);
  }

  _fail(text) {
    this.parts.error.hidden = text === null;
    this.parts.error.textContent = text ?? "";
  }
}

function problemOfLoop({ layout: { data, tensor, context, pipeline }, lora }) {
  if (lora?.is_quantized) return "QLoRA is not checked from here; run your own program with `ullage run`.";
  return data * tensor * context * pipeline === 1 ? null : "Jobs of several ranks are not checked from here; run your own program with `ullage run --world-size`.";
}

/** A sentence, with what is between backticks as code. */
const formatCode = (text) => text.split("`").map((part, index) => (index % 2 ? makeElement("code", {}, part) : part));

/** What a run came to, in a line. */
function tell(run) {
  if (run.vllm) return run.answers[0].error ? "" : `Laid out by vLLM ${run.vllm}: see the KV cache below.`;
  const device = run.devices[0];
  if (run.verdict === "failed") return `The check ended with an error, with PyTorch ${run.torch}; nothing was measured.`;
  if (run.verdict === "out_of_memory") return `The phantom ran out of memory, with PyTorch ${run.torch}.`;
  return device ? `Checked with PyTorch ${run.torch}: ${formatBytes(device.peak_used_bytes)} in use.` : "The program used no GPU.";
}
