"""Plans on a real GPU: what is foreseen of them against what they take.

    python -m benchmarks.plans.gpu predict --python ENVIRONMENT/bin/python    # where no GPU is
    python -m benchmarks.plans.gpu measure --output found.json                # where the GPU is
    python -m benchmarks.plans.gpu page found.json

`predict` searches plans for a program on the phantom, with the torch that the machine with the GPU
has, and keeps them with what is foreseen of each in gpu-plans.json. `measure` needs nothing but
that torch, and no network: it runs the unmodified program as it is and
under each plan, as `ullage exec` does, and with what else there is to save memory, each in a
process of its own, the program as it is once more at the end. No run begins after its limit.
`--phantom` goes the same way on the phantom, where times mean nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.plans.gpu_page import median_ms, write_page
from ullage.act.techniques.plan import Plan

ROOT = Path(__file__).parents[2]
PLANS = Path(__file__).with_name("gpu-plans.json")
RUNNER = Path(__file__).with_name("programs") / "measured.py"
PROGRAM = ("examples/gpt2/train.py", "--batch-size", "32")
STEPS = 15
GPU = "h100-80gb"
SHARES = (0.85, 0.7, 0.55, 0.45)
OFFLOADS = ("trl", "torchtune", "save_on_cpu")
COMPILED = ("compiled", "budget=0.5", "budget=0.2")
_RUN_LIMIT_S = 120
_TAIL = 5


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run: under a plan, with something else, or as the program is; and what is foreseen."""

    name: str
    plan: Plan | None = None
    instead: str = ""
    foreseen: dict[str, Any] | None = None


def predict(python: str, path: Path) -> None:
    """Searches plans for several budgets, and keeps all that were looked at."""
    from ullage.act.techniques.technique import Semantics
    from ullage.players.phantom.device import choose_device
    from ullage.search.runner import make_runner
    from ullage.search.runs.job import make_job, make_options
    from ullage.search.runs.trials import Trials
    from ullage.search.search import Search
    from ullage.verbs.run.options import RunOptions

    device = choose_device(GPU)
    words = [str(ROOT / PROGRAM[0]), *PROGRAM[1:]]
    unlimited = replace(device, is_unlimited=True)
    job = make_job(
        words, device=unlimited, python=python, options=make_options(RunOptions([], steps=3))
    )
    with Trials(job, on_progress=print) as trials:
        search = Search(make_runner(trials, job), device.gpu, Semantics.SAME)
        whole = search.fastest(device.gpu.total_bytes)
        used = whole.as_it_is.used_bytes
        reports = [whole, *(search.fastest(int(share * used)) for share in SHARES)]
    made_for = next(one.plan.made_for for one in reports if one.plan is not None)
    kinds = {block.path: block.kind for block in whole.blocks}
    kept: dict[str, Any] = {}
    for one in (candidate for report in reports for candidate in report.candidates):
        is_alone = len(one.actions) < 2
        if one.used_bytes > device.gpu.total_bytes or (one.seen is None and not is_alone):
            continue
        named = {path: kinds[path] for action in one.actions for path in action.modules}
        plan = Plan(one.actions, replace(made_for, modules=named)) if one.actions else None
        kept[one.name] = {
            "plan": None if plan is None else plan.document,
            "step_s": one.step_s,
            "peak_used_bytes": one.used_bytes,
            "peak_allocated_bytes": one.seen.allocated_bytes if one.seen else one.peak_bytes,
            "is_chosen": any(report.best and report.best.name == one.name for report in reports),
        }
    document = {"program": list(PROGRAM), "gpu": GPU, "torch": whole.torch, "plans": kept}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def wanted(path: Path) -> Iterator[RunRequest]:
    """The runs, those that matter most first."""
    kept = json.loads(path.read_text(encoding="utf-8"))["plans"]
    plans = [
        RunRequest(
            name,
            None if one["plan"] is None else Plan.parse(json.dumps(one["plan"])),
            foreseen={key: value for key, value in one.items() if key != "plan"},
        )
        for name, one in kept.items()
    ]
    first = [one for one in plans if one.plan is None or "offload" in one.name or _is_chosen(one)]
    yield from first
    yield from (RunRequest(name, instead=name) for name in OFFLOADS)
    yield from (one for one in plans if one not in first)
    yield RunRequest("as it is, again")
    yield from (RunRequest(name, instead=name) for name in COMPILED)


def _is_chosen(one: RunRequest) -> bool:
    return one.foreseen is not None and one.foreseen["is_chosen"]


def run(one: RunRequest, python: str, *, is_phantom: bool, steps: int) -> dict[str, Any]:
    """What a run took, or why it failed."""
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory, "result.json")
        plan = Path(directory, "plan.json")
        if one.plan is not None:
            one.plan.save(plan)
        instead = ["--instead", one.instead] if one.instead else []
        script = [str(ROOT / PROGRAM[0]), *PROGRAM[1:], "--steps", str(steps)]
        words = [str(RUNNER), str(result), *instead, *script]
        told = [python, str(plan) if one.plan is not None else "", *words]
        # As little as possible is between the program and the GPU that is measured.
        code = _PLAY if is_phantom else _EXECUTE if one.plan is not None else _START
        said = _wait([sys.executable, "-c", code, *told])
        if not said and result.exists():
            found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
            return found
        return {"failed": said or "it wrote no result"}


def _wait(command: Sequence[str]) -> str:
    """Waits for a process, and ends it with all that it started where it takes too long; what is
    wrong, empty where nothing is.
    """
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=_RUN_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"it did not end within {_RUN_LIMIT_S} s"
    last = " / ".join(said.strip().splitlines()[-_TAIL:])
    return (last or f"it ended with {process.returncode}") if process.returncode else ""


_START = "import os, sys; os.execv(sys.argv[1], [sys.argv[1], *sys.argv[3:]])"
_EXECUTE = """
import sys
from ullage.verbs.exec.function import execute
from ullage.act.techniques.plan import Plan
python, plan, *words = sys.argv[1:]
code, outcome = execute(words, plan=plan, python=python)
raise SystemExit(code if code or outcome.is_applied else outcome.failure)
"""
_PLAY = f"""
import sys
import ullage
python, plan, *words = sys.argv[1:]
run = ullage.run(words, gpu={GPU!r}, plan=plan or None, python=python)
raise SystemExit(0 if run.exit_code == 0 else run.report.reason)
"""


def measure(path: Path, output: Path, options: argparse.Namespace) -> None:
    """Runs all that is wanted, and writes after each run what there is."""
    started_s = time.monotonic()
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "is_phantom": options.phantom,
        "plans": json.loads(path.read_text(encoding="utf-8"))["torch"],
        "program": list(PROGRAM),
        "runs": [],
        "left_out": [],
    }
    for one in (each for each in wanted(path) if options.only in each.name):
        left_s = options.limit_s - (time.monotonic() - started_s)
        if left_s < options.reserve_s:
            found["left_out"].append(one.name)
            continue
        begun_s = time.monotonic()
        took = run(one, options.python, is_phantom=options.phantom, steps=options.steps)
        told = {"name": one.name, "foreseen": one.foreseen, "is_plan": not one.instead, **took}
        found["runs"].append(told)
        step_ms = median_ms(told)
        shown = took.get("failed") if step_ms is None else f"{step_ms:.1f} ms"
        print(f"{time.monotonic() - begun_s:5.1f} s  {one.name}: {shown}", flush=True)
        output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main(words: Sequence[str] | None = None) -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("what", choices=("predict", "measure", "page"))
    parser.add_argument(
        "found", nargs="?", type=Path, help="what measure has written, for the page"
    )
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--plans", type=Path, default=PLANS)
    parser.add_argument("--output", type=Path, default=Path("gpu-found.json"))
    parser.add_argument("--limit-s", type=float, default=430.0, help="no run begins after it")
    parser.add_argument("--reserve-s", type=float, default=20.0, help="that one run may take")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--only", default="", help="runs with this in their names")
    parser.add_argument("--phantom", action="store_true")
    options = parser.parse_args(words)
    if options.what == "predict":
        predict(options.python, options.plans)
    elif options.what == "measure":
        measure(options.plans, options.output, options)
    else:
        write_page(json.loads(options.found.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
