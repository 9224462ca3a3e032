"""ProbedSearch plans for workloads at several budgets, check what is promised of them, and write
docs/results/plans.md.

    python -m benchmarks.plans --python ENVIRONMENT/bin/python [--brute] [WORKLOAD ...]

Without names, the workloads that have no result yet; each result is kept as soon as it is there
(benchmarks/plans/results), and the page is written from all of them. ENVIRONMENT needs
transformers, timm, diffusers and peft (benchmarks/stacks.txt).

Checked of each answer: the plan, saved and run again by `ullage.run`, fits the budget; it uses at
least 95 % of it where memory binds; more memory never gives a slower plan; and, with --brute, no
plan as people write them by hand is faster and fits too (benchmarks/plans/brute.py).
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import ullage
from benchmarks.plans import page, results
from benchmarks.plans.brute import Contest, contest
from benchmarks.plans.probed import ProbedSearch
from benchmarks.plans.results import Answer, Result
from benchmarks.plans.workloads import WORKLOADS, Workload
from benchmarks.provenance import machine
from ullage.act.techniques.technique import Semantics
from ullage.players.phantom.device import choose_device
from ullage.search.findings import FitReport
from ullage.search.runner import STEPS, make_runner
from ullage.search.runs.job import make_job, make_options
from ullage.search.runs.trials import Trials
from ullage.verbs.run.options import RunOptions

# Runs at a time.
_WIDTH = 2


def measure(name: str, python: str, *, is_brute: bool) -> Result:
    """Searches one workload."""
    workload = WORKLOADS[name]
    device = choose_device(workload.gpu)
    job = make_job(
        workload.command,
        device=replace(device, is_unlimited=True),
        python=python,
        options=make_options(RunOptions([], steps=STEPS, time=True)),
    )
    started_s = time.monotonic()
    with Trials(job, on_progress=print) as trials:
        search = ProbedSearch(make_runner(trials, job), device.gpu, Semantics.SAME)
        whole = search.fastest(device.gpu.total_bytes)
        if whole.best is None:
            raise RuntimeError(f"{name}: {whole.failure or 'does not fit the whole GPU'}")
        budgets = [int(share * whole.as_it_is.used_bytes) for share in page.SHARES]
        reports = [search.fastest(one) for one in budgets]
        num_runs, searched_s = trials.num_runs, time.monotonic()
        contests = [_contest(search, one) if is_brute else None for one in reports]
        num_brute_runs, ended_s = trials.num_runs - num_runs, time.monotonic()
        gaps = [_gap_at_budget(search, one) for one in reports]
    with ThreadPoolExecutor(_WIDTH) as pool:
        used = list(pool.map(lambda one: _again(one, workload, python), reports))
    kinds = Counter(block.kind for block in whole.blocks)
    return Result(
        name=name,
        date=f"{datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}",
        ullage=ullage.__version__,
        torch=whole.torch,
        machine=machine(),
        as_it_is_bytes=whole.as_it_is.used_bytes,
        as_it_is_s=whole.as_it_is.step_s,
        fastest_s=whole.best.step_s,
        blocks=", ".join(f"{count} {kind}" for kind, count in kinds.items()),
        num_runs=num_runs,
        wall_s=searched_s - started_s,
        num_brute_runs=num_brute_runs,
        brute_s=ended_s - searched_s,
        answers=tuple(map(_answer, reports, used, gaps, contests)),
    )


def _contest(search: ProbedSearch, report: FitReport) -> Contest:
    return contest(search, report.best, report.budget_bytes)


def _gap_at_budget(search: ProbedSearch, report: FitReport) -> float:
    if report.best is None:
        return 0.0
    return 1 - search.bound_s(report.best, report.budget_bytes) / report.best.step_s


def _answer(report: FitReport, used: int | None, gap: float, held: Contest | None) -> Answer:
    best = report.best
    return Answer(
        budget_bytes=report.budget_bytes,
        plan=None if best is None else best.name,
        step_s=0.0 if best is None else best.step_s,
        used_bytes=used,
        gap=report.gap,
        gap_at_budget=gap,
        contest=held,
    )


def _again(report: FitReport, workload: Workload, python: str) -> int | None:
    """What the chosen plan takes when its file is read and the program run afresh; None: there is
    none, or it does not run through.
    """
    if report.best is None:
        return None
    with tempfile.TemporaryDirectory(prefix="ullage-") as directory:
        path = None
        if report.plan is not None:
            path = Path(directory, "plan.json")
            report.plan.save(path)
        again = ullage.run(
            workload.command, gpu=workload.gpu, plan=path, python=python, steps=STEPS,
            stdout_to_stderr=True,
        )  # fmt: skip
    return again.peak_used_bytes if again.exit_code == 0 else None


def _missing() -> Sequence[str]:
    held = {one.name for one in results.saved()}
    return [name for name in WORKLOADS if name not in held]


def main() -> None:
    """Measures, and writes the page from all results that there are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", help="of the environment; none: only write the page")
    parser.add_argument("--brute", action="store_true", help="look for better plans by brute force")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    options = parser.parse_args()
    unknown = set(options.workloads) - set(WORKLOADS)
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    for name in (options.workloads or _missing()) if options.python else ():
        results.save(measure(name, options.python, is_brute=options.brute))
        page.write(list(results.saved()))
    page.write(list(results.saved()))


if __name__ == "__main__":
    main()
