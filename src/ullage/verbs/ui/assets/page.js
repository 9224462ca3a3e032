// The page: its views, its state in the address, and what asks for answers.

import { Advice } from "./advice.js";
import { ask, Latest, post } from "./ask.js";
import { EngineCheck } from "./check.js";
import { Controls } from "./controls.js";
import { Hierarchies } from "./gpus.js";
import { Result } from "./result.js";
import { setUpSnapshots } from "./snapshots.js";
import { readState, writeState } from "./state.js";
import { StepTimeline } from "./step.js";

const VIEWS = ["calculator", "gpus", "snapshots"];

class Page {
  constructor(catalogue) {
    this.state = readState(location.hash);
    this.checked = { query: null, run: null };
    const onChange = () => this.change();
    this.controls = new Controls(document.getElementById("controls"), catalogue, { state: this.state, onChange });
    this.hierarchies = new Hierarchies(document.getElementById("hierarchies"), catalogue, { state: this.state, onChange: () => this.save() });
    this.result = new Result(catalogue);
    this.timeline = new StepTimeline(document.getElementById("timeline"), document.getElementById("reading"));
    this.latest = new Latest((query) => post("/estimate", query), (...answer) => this.showAnswer(...answer));
    this.advice = new Advice(document.getElementById("advice"), { state: this.state, apply: (changes) => this.controls.set(changes) });
    this.check = new EngineCheck({
      query: () => this.controls.query(),
      vllmProblem: catalogue.vllm_problem,
      onResult: (run, query) => {
        this.checked = { run, query };
        this.redraw();
      },
    });
    this._listen();
    this.showView();
    this.change();
  }

  /** The controls have changed: the address and the answer follow. */
  change() {
    this.save();
    try {
      this.latest.want(this.controls.query());
    } catch (error) {
      this.showAnswer(null, error.message);
    }
  }

  save() {
    const text = writeState(this.state);
    history.replaceState(null, "", text ? `#${text}` : location.pathname);
  }

  showAnswer(answer, problem, query) {
    this.result.showProblem(problem);
    document.body.dataset.state = "ready";
    if (answer === null) {
      this.advice.follow(null);
      return;
    }
    this.answer = answer;
    this.query = JSON.stringify(query);
    if (this.state.config) this._learnShape(answer.shape);
    this.redraw();
    this.check.follow(answer.document, this.query);
    this.advice.follow(query);
  }

  redraw() {
    if (!this.answer) return;
    const found = this.answer.document;
    document.body.dataset.mode = found.kind;
    const { run, query } = this.checked;
    const fitting = query === this.query ? run : null; // a result stays with what was asked
    if (found.kind === "serving") {
      this.result.showServing(found, fitting);
      return;
    }
    const assumptions = fitting?.basis.allocator.assumptions.map(({ what, where }) => (where ? `${what} (${where})` : what)) ?? [];
    this.result.showTraining(found, fitting?.devices[0] ?? null, assumptions);
    this.timeline.show(found);
  }

  /** What the server says of the user's own configuration, before its depth and width are turned. */
  _learnShape(shape) {
    if (this.controls.ownShape || this.state.depth || this.state.width) return;
    this.controls.ownShape = shape;
    this.controls.show();
  }

  showView() {
    const view = VIEWS.includes(this.state.view) ? this.state.view : VIEWS[0];
    for (const one of VIEWS) {
      document.getElementById(one).hidden = one !== view;
      const tab = document.getElementById(`tab-${one}`);
      tab.setAttribute("aria-selected", one === view);
      tab.tabIndex = one === view ? 0 : -1;
    }
    if (view === "gpus") this.hierarchies.show();
    document.title = `ullage: ${view}`;
  }

  open(view) {
    this.state.view = view;
    this.showView();
    this.save();
  }

  _listen() {
    for (const view of VIEWS) document.getElementById(`tab-${view}`).addEventListener("click", () => this.open(view));
    document.querySelector('[role="tablist"]').addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      const next = VIEWS[(VIEWS.indexOf(this.state.view) + step + VIEWS.length) % VIEWS.length];
      this.open(next);
      document.getElementById(`tab-${next}`).focus();
    });
    document.getElementById("theme").addEventListener("click", () => globalThis.switchTheme());
    document.getElementById("copy").addEventListener("click", () => this._copy());
    addEventListener("hashchange", () => {
      Object.assign(this.state, readState(location.hash));
      this.controls.ownShape = null;
      this.controls.show();
      this.showView();
      this.change();
    });
  }

  /** The state, to be put behind the address of anybody's page. */
  async _copy() {
    const text = `#${writeState(this.state)}`;
    const copied = document.getElementById("copied");
    try {
      await navigator.clipboard.writeText(text);
      copied.textContent = "Copied: add it to the address of any ullage page.";
    } catch {
      copied.textContent = "The state is in the address, after the #.";
    }
    setTimeout(() => { copied.textContent = ""; }, 5000);
  }
}

setUpSnapshots();
try {
  globalThis.ullage = new Page(await ask("/catalogue"));
} catch (error) {
  document.getElementById("verdict").textContent = error.message;
  document.body.dataset.state = "failed";
}
