"""Search plans for workloads at several budgets, check what is promised of them, and write
docs/fit-results.md.

    python -m benchmarks.plans --python ENVIRONMENT/bin/python [WORKLOAD ...]

Checked of each answer: the plan, saved and run again by `ullage.run`, fits the budget; it uses at
least 95 % of it where memory binds; more memory never gives a slower plan; and no plan of one
technique on k of N blocks, whether the first or evenly spaced, all or none, is faster and fits too.
The last by brute force over all k, where --brute is given.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import ullage
from ullage.fits import make_runner
from ullage.jobs import make_job, make_options
from ullage.phantom.device import choose_device
from ullage.plan.findings import Candidate
from ullage.plan.search import Search
from ullage.techniques.technique import Semantics
from ullage.trials import Trials
from ullage.units import format_bytes

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "fit-results.md"
PROGRAM = Path(__file__).with_name("train.py")
GPU = "h100-80gb"
WORKLOADS = {
    "gpt2-plain": 8, "gpt2": 8, "llama-1b": 4, "vit-large": 64, "resnet152": 64, "t5-base": 8,
    "mixtral-small": 8,
}  # fmt: skip
SHARES = (0.85, 0.7, 0.55, 0.45)
WELL_USED = 0.95


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found for one budget; `used_bytes` of the plan run again; None where none fits."""

    budget_bytes: int
    plan: str | None
    step_s: float
    used_bytes: int | None
    fits_again: bool
    is_bound: bool
    gap: float
    beaten_by: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """One workload."""

    name: str
    batch: int
    as_it_is_bytes: int
    as_it_is_s: float
    fastest_s: float
    num_blocks: int
    wall_s: float
    num_runs: int
    answers: tuple[Answer, ...]
    num_brute: int


def words_of(name: str) -> list[str]:
    """The program of a workload."""
    if name == "gpt2-plain":  # without a library
        return [str(ROOT / "examples/gpt2/train.py"), "--batch-size", str(WORKLOADS[name])]
    return [str(PROGRAM), name, str(WORKLOADS[name])]


def measure(name: str, python: str, *, is_brute: bool) -> Result:
    """Searches one workload."""
    words = words_of(name)
    device = choose_device(GPU)
    job = make_job(
        words,
        device=replace(device, is_unlimited=True),
        python=python,
        options=make_options(steps=3),
    )
    started_s = time.monotonic()
    with Trials(job, on_progress=print) as trials:
        search = Search(make_runner(trials, job), device.gpu, Semantics.SAME)
        whole = search.fastest(device.gpu.total_bytes)
        if whole.best is None:
            raise RuntimeError(f"{name}: {whole.failure or 'does not fit the whole GPU'}")
        base = whole.as_it_is
        budgets = [int(share * base.used_bytes) for share in SHARES]
        reports = [search.fastest(one) for one in budgets]
        wall_s, num_runs = time.monotonic() - started_s, trials.num_runs
        rivals = brute(search) if is_brute else []
    answers = []
    for report in reports:
        best = report.best
        again = None if report.plan is None else _again(report.plan, words, python)
        if best is not None and best.seen is not None and not best.actions:
            again = best.seen.used_bytes
        rival = next((one.name for one in rivals if _beats(one, best, report.budget_bytes)), "")
        answers.append(
            Answer(
                report.budget_bytes,
                None if best is None else best.name,
                0.0 if best is None else best.step_s,
                again,
                again is not None and again <= report.budget_bytes,
                best is not None and best.step_s > whole.best.step_s,
                report.gap,
                rival,
            )
        )
    return Result(
        name, WORKLOADS[name], base.used_bytes, base.step_s, whole.best.step_s,
        len(whole.blocks), wall_s, num_runs, tuple(answers), len(rivals),
    )  # fmt: skip


def brute(search: Search) -> list[Candidate]:
    """Every plan of one treatment on k of N blocks, first or evenly spaced, run on the device."""
    return search.look_at(
        [
            actions
            for treatment in search.treatments
            for paths in _some_of([block.path for block in search.blocks])
            for actions in [tuple(replace(one, modules=paths) for one in treatment)]
        ]
    )


def _some_of(paths: Sequence[str]) -> Iterator[tuple[str, ...]]:
    num = len(paths)
    for k in range(1, num + 1):
        yield tuple(paths[:k])
        yield tuple(paths[place] for place in sorted({i * num // k for i in range(k)}))


def _beats(one: Candidate, best: Candidate | None, budget_bytes: int) -> bool:
    fits = one.seen is not None and one.seen.fits and one.used_bytes <= budget_bytes
    return fits and (best is None or one.step_s < best.step_s * (1 - 1e-6))


def _again(plan: ullage.Plan, words: Sequence[str], python: str) -> int | None:
    """What the plan takes when the file is read and the program run afresh; None: it does not fit
    the GPU.
    """
    with tempfile.TemporaryDirectory(prefix="ullage-") as directory:
        path = Path(directory, "plan.json")
        plan.save(path)
        again = ullage.run(words, gpu=GPU, plan=path, python=python, steps=3, stdout_to_stderr=True)
    return again.peak_used_bytes if again.exit_code == 0 else None


def problems(result: Result) -> Iterator[str]:
    """What does not hold."""
    slowest = 0.0
    for one in result.answers:  # the largest budget first
        if one.plan is None:
            continue
        if not one.fits_again:
            yield f"{result.name}: {one.plan} does not fit {one.budget_bytes}"
        if one.step_s < slowest:
            yield f"{result.name}: slower with more memory than {one.budget_bytes}"
        slowest = max(slowest, one.step_s)
        used = (one.used_bytes or 0) / one.budget_bytes
        if one.is_bound and used < WELL_USED:
            yield f"{result.name}: uses {100 * used:.1f} % of {one.budget_bytes}"
        if one.beaten_by:
            yield f"{result.name}: {one.beaten_by} beats {one.plan}"


def render(results: Sequence[Result]) -> str:
    """The page."""
    found = [problem for one in results for problem in problems(one)]
    answers = [one for result in results for one in result.answers]
    fitting = [one for one in answers if one.plan is not None]
    shares = ", ".join(f"{100 * one:.0f} %" for one in SHARES)
    again = sum(one.fits_again for one in fitting)
    lines = [
        "# Plans that were found",
        "",
        "Made by `python -m benchmarks.plans`: `ullage fit` on workloads with random weights, at",
        f"budgets of {shares} of what each takes as it is on an {GPU}. Memory is that of the",
        "phantom; times of steps are those of the model of costs, not measured on a GPU.",
        "The searches ran on two cores, some of them beside other work.",
        "",
        f"Written {datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}. Of {len(answers)} searches",
        f"{len(fitting)} found a plan; {again} of these fit their budget when the plan's file was",
        "read and the program run afresh.",
        "",
    ]
    for result in results:
        lines += _table(result)
    lines += ["## What does not hold", ""]
    lines += [f"- {one}" for one in found] or ["Nothing of what is checked."]
    return "\n".join(lines) + "\n"


def _table(result: Result) -> Iterator[str]:
    yield f"## {result.name}, batch {result.batch}"
    yield ""
    yield (
        f"As it is: {format_bytes(result.as_it_is_bytes, 2)}, {1e3 * result.as_it_is_s:.1f} ms; "
        f"the fastest plan whatever it takes: {1e3 * result.fastest_s:.1f} ms. "
        f"{result.num_blocks} blocks, {result.num_runs} runs for all budgets in "
        f"{result.wall_s:.0f} s."
        + (
            f" {result.num_brute} plans of one technique by brute force."
            if result.num_brute
            else ""
        )
    )
    yield ""
    yield "| budget | plan | step | used | of the budget | gap |"
    yield "|---|---|---|---|---|---|"
    for one in result.answers:
        budget = format_bytes(one.budget_bytes, 2)
        if one.plan is None or one.used_bytes is None:
            yield f"| {budget} | none that was tried fits | | | | |"
            continue
        share = 100 * one.used_bytes / one.budget_bytes
        yield (
            f"| {budget} | {one.plan} | {1e3 * one.step_s:.1f} ms | "
            f"{format_bytes(one.used_bytes, 2)} | {share:.1f} % | {100 * one.gap:.2f} % |"
        )
    yield ""


def main() -> None:
    """Measures, and writes the page from all results that there are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True)
    parser.add_argument("--results", type=Path, default=Path("build/plans"))
    parser.add_argument("--brute", action="store_true", help="try all k of N, some hundred runs")
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    for name in options.workloads:
        found = measure(name, options.python, is_brute=options.brute)
        text = json.dumps(asdict(found), indent=1)
        (options.results / f"{name}.json").write_text(text, encoding="utf-8")
        PAGE.write_text(render(list(_read(options.results))), encoding="utf-8")


def _read(directory: Path) -> Iterator[Result]:
    """The results that there are, of this run and of earlier ones."""
    for name in WORKLOADS:
        path = directory / f"{name}.json"
        if path.exists():
            held = json.loads(path.read_text(encoding="utf-8"))
            yield Result(**held | {"answers": tuple(Answer(**one) for one in held["answers"])})


if __name__ == "__main__":
    main()
