"""Train twenty programs on the CPU with real numbers, as they are and under every plan that the
search gives, and write docs/results/plans.md.

    python -m benchmarks.plans.same --python ENVIRONMENT/bin/python [--minutes N] [NAME ...]

Without names, the programs that have no result yet; each result is kept as soon as it is there
(benchmarks/plans/same-results.json), and the page is written from all of them. ENVIRONMENT needs
transformers, timm, diffusers, peft, lightning and x-transformers.

A plan is looked for on the phantom with `--allow same`, at two budgets below what the program takes
as it is. Then `ullage exec` runs the program under it on the CPU, with fewer rows and positions and
in double precision, from its own start and from one at which every second layer is zero.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Semantics
from ullage.ground.units import format_bytes
from ullage.players.phantom.device import choose_device
from ullage.search.budget import Limit
from ullage.search.findings import FitReport
from ullage.search.runner import make_runner, make_search_job
from ullage.search.runs.trials import Trials
from ullage.search.search import Search
from ullage.verbs.run.options import RunOptions

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "benchmarks" / "plans" / "programs" / "alike.py"
RESULTS = Path(__file__).parent / "same-results.json"
MAIN = "from ullage.cli import main; main()"
NAMES = (
    "gpt2-example", "gpt2-example-small", "residual-net-example", "moe-example", "mingpt",
    "nanogpt", "dit", "vae", "gpt2", "llama", "bert", "t5", "qwen3", "lora", "x-transformers",
    "lightning", "resnet18", "vit-tiny", "convnext", "unet",
)  # fmt: skip
# What may be used, of what the program takes as it is beside the driver's context.
SHARES = (0.85, 0.6)
# Why some programs go no lower, where that is known.
HELD = {
    "x-transformers": "its wrapper asks for every layer's outputs and scores, and holds them all",
}
STARTS = {"its own": (), "zeros": ("--zero",), "its own, then zeros": ("--zero-later",)}
MOST_LOSS, MOST_PARAMETER = 1e-5, 1e-9
# A parameter that is zero but for its rounding, as the bias of keys is, which softmax does not see,
# has no relative difference: what it moves by is told as a share of a step, the rate of alike.py.
_LEAST, _STEP = 1e-12, 3e-4
_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True)
class Case:
    """One plan of one program.

    Attributes:
        program: its name.
        budget: what it had to fit, for people.
        plan: in words.
        replayed: what its replay said; None: no plan was seen to fit.
        start: of `STARTS`.
        loss_diff: the largest difference of a loss of five steps.
        parameter_diff: of a parameter after them, relative to the largest of its tensor.
        refused: what `exec` said where it refused the plan; empty if it did not.
    """

    program: str
    budget: str
    plan: str
    replayed: str
    start: str = ""
    loss_diff: float = 0.0
    parameter_diff: float = 0.0
    refused: str = ""

    @property
    def is_same(self) -> bool:
        """Whether the training is the same, as far as this is asked."""
        is_near = self.loss_diff <= MOST_LOSS and self.parameter_diff <= MOST_PARAMETER
        return is_near and not self.refused


def measure(name: str, python: str, minutes: float) -> list[Case]:
    """Plans of one program, and what each comes to."""
    cases = []
    for budget, report in search(name, python, minutes):
        if report.best is None or report.plan is None:
            why = "; ".join([why_none(report), *([HELD[name]] if name in HELD else [])])
            cases.append(Case(name, budget, f"none: {why}", ""))
            continue
        replayed = report.replayed.text if report.replayed else "no"
        case = Case(name, budget, report.best.name, replayed)
        cases += [judge(case, report.plan, python, start) for start in ("its own", "zeros")]
    return cases


def why_none(report: FitReport) -> str:
    """Why no plan was found, and which takes the least of what was tried."""
    if report.failure or not report.candidates:
        return report.failure or "nothing could be tried"
    least = min(report.candidates, key=lambda one: one.used_bytes)
    used, budget = format_bytes(least.used_bytes), format_bytes(report.budget_bytes)
    ended = f" ({report.ended})" if report.ended else ""
    return f"nothing that was tried fits {budget}{ended}; the least is {used}, {least.name}"


def search(
    name: str, python: str, minutes: float, shares: Sequence[float] = SHARES
) -> list[tuple[str, FitReport]]:
    """The plans for each budget."""
    rows = "16" if name == "gpt2-example" else "64"
    length = "1024" if name == "gpt2-example" else "512"
    words = [str(PROGRAM), name, "--rows", rows, "--length", length]
    device = choose_device("rtx-2060" if name == "gpt2-example" else "h100-80gb")
    job = make_search_job(RunOptions(words, python=python), device)
    limit = Limit(time.monotonic() + 60 * minutes)
    found = []
    with Trials(job, on_progress=lambda line: print(f"  {line[:150]}", flush=True)) as trials:
        search = Search(
            make_runner(trials, job),
            device.gpu,
            Semantics.SAME,
            is_late=lambda share: limit.is_late(share),
        )
        if name == "gpt2-example":
            return [("6 GiB of an rtx-2060", search.fastest(device.gpu.total_bytes))]
        whole = search.fastest(device.gpu.total_bytes).as_it_is
        context = device.gpu.context_high_bytes
        for share in shares:
            budget = context + int(share * (whole.used_bytes - context))
            report = search.fastest(budget)
            found.append((f"{100 * share:.0f} %", report))
            limit = Limit(time.monotonic() + 60 * minutes)
    return found


def judge(case: Case, plan: Plan, python: str, start: str) -> Case:
    """Trains under a plan and without it, from a start."""
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        plan.save(here / "plan.json")
        words = [str(PROGRAM), case.program, *STARTS[start]]
        alone, under = here / "alone.npz", here / "under.npz"
        run([python, *words, "--numbers", str(alone)])
        said = run(
            [
                sys.executable,
                "-c",
                MAIN,
                "exec",
                "--plan",
                str(here / "plan.json"),
                "--python",
                python,
                "--",
                *words,
                "--numbers",
                str(under),
            ]
        )
        if said:
            return replace(case, start=start, refused=said)
        with np.load(alone) as ours, np.load(under) as theirs:
            apart = {one: difference(theirs[one], ours[one]) for one in ours if one != "losses"}
            loss = float(np.abs(theirs["losses"] - ours["losses"]).max())
    return replace(case, start=start, loss_diff=loss, parameter_diff=max(apart.values()))


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference, relative to the largest number; of zeros but for their rounding,
    relative to a step of the optimizer.
    """
    if not other.size:
        return 0.0
    largest = float(np.abs(other).max())
    return float(np.abs(one - other).max() / (largest if largest > _LEAST else _STEP))


def run(command: Sequence[str]) -> str:
    """Runs to the end; what it said last where it failed, else nothing."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if not done.returncode:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]


def write_page(cases: Sequence[Case], versions: str) -> None:
    """The page of all results."""
    plans = {(one.program, one.budget) for one in cases if one.start}
    programs = {one.program for one in cases}
    differing = [one for one in cases if one.start and not one.is_same]
    losses = max((one.loss_diff for one in cases), default=0)
    parameters = max((one.parameter_diff for one in cases), default=0)
    about = made_by("benchmarks.plans.same", torch=versions)
    found = (
        f"{len(programs)} of {len(NAMES)} programs, {len(plans)} plans of `--allow same`, each "
        "trained for five steps on the CPU in double precision under `ullage exec` and without a "
        "plan, from the program's own start and from one at which every second layer is zero. "
        f"Losses differ by {losses:.1e} at most, parameters by {parameters:.1e} of the largest of "
        f"their tensor; {len(differing)} trainings are off by more than {MOST_LOSS:.0e} or "
        f"{MOST_PARAMETER:.0e}, or were refused."
    )
    how = (
        "The budget is a fraction of the unchanged program's memory without the driver context; "
        '"none" means that the search found no plan that fits in its time. On the '
        "CPU there are 2 rows of 16 positions, or images of 64; the plan, the model and the "
        "optimizer are those of the search. If a parameter is zero except for rounding (below "
        f"{_LEAST:.0e}, such as the bias of BERT's keys, whose gradient is zero), its difference "
        "is relative to the learning rate. The programs are in "
        "`benchmarks/plans/programs/alike.py`, written after the public documentation of the "
        "packages, with random weights."
    )
    lines = [
        "# Plans that train the same", "", about, "", found, "", how, "",
        "| program | budget | plan | start | loss off by | parameters off by | replayed |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for one in cases:
        numbers = (
            ("", "") if not one.start else (f"{one.loss_diff:.1e}", f"{one.parameter_diff:.1e}")
        )
        if one.refused:
            numbers = ("refused", one.refused)
        cells = (one.program, one.budget, one.plan, one.start, *numbers, one.replayed)
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    publish("plans-same", "\n".join(lines) + "\n")


def main() -> None:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True)
    parser.add_argument("--minutes", type=float, default=10.0, help="for each search")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in args.names or [one for one in NAMES if one not in kept]:
        print(name, flush=True)
        kept[name] = [asdict(one) for one in measure(name, args.python, args.minutes)]
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        cases = [Case(**one) for each in NAMES if each in kept for one in kept[each]]
        write_page(cases, find_versions(args.python))


def find_versions(python: str) -> str:
    """The packages that the programs are made of."""
    code = (
        "import importlib.metadata as m\n"
        "names = ('transformers', 'timm', 'peft', 'diffusers', 'lightning', 'x-transformers')\n"
        "print(', '.join([m.version('torch'), *(f'{n} {m.version(n)}' for n in names)]))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
