"""Recomputation under torch's `activation_memory_budget`, and under plans that take no more memory;
writes docs/activation-budget.md.

    python -m benchmarks.plans.partitioner --python ENVIRONMENT/bin/python [MODEL ...]

Both work on the same compiled model (programs/budgeted.py), whole or block by block, cut into
forward and backward by the same partitioner. The peak is that of the phantom; floating-point
operations are counted in the graphs that ran, as often as they ran (programs/counted.py). A plan
checkpoints some blocks, selectively or as a whole, and nothing else: the solver of `ullage fit`
picks it by the operations that it repeats, and it counts where its own run takes no more memory
than torch's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plans.partitioner_page import GPU, MODELS, Pair, Result, Taken, render
from ullage.api import Run, run_job
from ullage.gpus.catalog import Gpu
from ullage.jobs import make_job, make_options
from ullage.phantom.device import choose_device
from ullage.plan.blocks import Block
from ullage.plan.cost import operation_seconds
from ullage.plan.problem import Problem, make_problem
from ullage.plan.profile import read_profile
from ullage.plan.solve import solve
from ullage.techniques.plan import MadeFor, Plan
from ullage.techniques.technique import Action
from ullage.trace.work import Operation

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "activation-budget.md"
PROGRAM = Path(__file__).with_name("programs") / "budgeted.py"
BUDGETS = {"blocks": (0.8, 0.5, 0.3, 0.1, 0.0), "whole": (0.3, 0.1)}
Choice = tuple[int, ...]
# Of every second product nothing is gained where all products are as dear by what they keep.
SAVES = ("matmul_and_attention", "matmul", "attention")
_TERA = 1e12
# Of two plans with as many operations, the one that the model of costs finds faster.
_PER_SECOND = 1e-3
_TRIES = 3
_FINE = 5000
_AT_ONCE = 2


class Bench:
    """One model: what is run of it, each once."""

    def __init__(self, name: str, python: str) -> None:
        self.name = name
        self._python = python
        self._device = choose_device(GPU)
        self._taken: dict[tuple[str, Choice], Taken] = {}
        run, (found,) = self.run("nothing", [{}], is_described=True)
        outcome = run.report.program.plan
        if outcome is None or outcome.found is None:
            raise RuntimeError(f"{name}: {run.report.reason or 'is no model that trains'}")
        self.step_flops: int = found["flops"]
        self._made_for: MadeFor = outcome.found
        prefix = MODELS[name][1]
        self.blocks = tuple(
            Block(path, kind)
            for path, kind in self._made_for.modules.items()
            if path.startswith(prefix) and "." not in path.removeprefix(prefix)
        )
        self.treatments: list[tuple[str, Mapping[str, Any]]] = [
            *(("selective_checkpoint", {"saves": one}) for one in SAVES),
            ("checkpoint", {}),
        ]

    def run(
        self, how: str, trials: Sequence[Mapping[str, Any]], *, is_described: bool = False
    ) -> tuple[Run, list[dict[str, Any]]]:
        """A run of the program, and what it wrote down of each trial."""
        with tempfile.TemporaryDirectory(prefix="ullage-") as directory:
            given, output = Path(directory, "trials.json"), Path(directory, "found.json")
            given.write_text(json.dumps(trials), encoding="utf-8")
            batch = str(MODELS[self.name][0])
            words = [str(PROGRAM), self.name, batch, how, str(given), str(output)]
            options = replace(make_options(), describes=is_described)
            job = make_job(words, device=self._device, python=self._python, options=options)
            run = run_job(job, None, stdout_to_stderr=True)
            if run.exit_code:
                raise RuntimeError(f"{' '.join(words)}: {run.report.reason}")
            return run, json.loads(output.read_text(encoding="utf-8"))

    def trial(self, choice: Sequence[int]) -> dict[str, Any]:
        """Of a treatment for each block."""
        return {"plan": self.plan(choice).text()} if any(choice) else {}

    def plan(self, choice: Sequence[int]) -> Plan:
        """The plan of a treatment for each block; 0: as it is."""
        actions = []
        for number, (technique, settings) in enumerate(self.treatments, start=1):
            paths = tuple(
                block.path for block, one in zip(self.blocks, choice, strict=True) if one == number
            )
            if paths:
                actions.append(Action(technique, paths, settings))
        named = {path: self._made_for.modules[path] for one in actions for path in one.modules}
        return Plan(tuple(actions), replace(self._made_for, modules=named))

    def under_budgets(self, how: str) -> list[Taken]:
        """What torch takes at each budget; as it is, first."""
        budgets = [{"budget": one} for one in (1.0, *BUDGETS[how])]
        return [read(one, self._device.gpu) for one in self.run(how, budgets)[1]]

    def under_plans(self, how: str, choices: Sequence[Choice]) -> list[Taken]:
        """What plans take, each run once."""
        new = [one for one in dict.fromkeys(choices) if (how, one) not in self._taken]
        found = self.run(how, [self.trial(one) for one in new])[1] if new else []
        for choice, one in zip(new, found, strict=True):
            self._taken[how, choice] = read(one, self._device.gpu)
        return [self._taken[how, one] for one in choices]

    def problem(self) -> tuple[Problem, list[Taken]]:
        """What each treatment of all blocks keeps and costs, blocks compiled: the operations that
        are computed again in place of seconds.
        """
        num = len(self.blocks)
        alike = [(kind,) * num for kind in range(len(self.treatments) + 1)]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            runs = list(pool.map(lambda one: self.run("blocks", [self.trial(one)]), alike))
        taken = [read(found, self._device.gpu) for _, (found,) in runs]
        self._taken |= {("blocks", one): each for one, each in zip(alike, taken, strict=True)}
        profiles = [read_profile(run.report.processes[0].record, self.blocks) for run, _ in runs]
        costs = [one.flops / _TERA + _PER_SECOND * one.seconds for one in taken]
        return make_problem(profiles, [np.full(num, one / num) for one in costs]), taken


def read(found: Mapping[str, Any], gpu: Gpu) -> Taken:
    """What the program wrote down."""
    fields = {"module": -1, "part": "forward"}
    unmoved = Operation(*(fields.get(name, 0) for name in Operation._fields))  # type: ignore[arg-type]
    operations = [
        unmoved._replace(
            name=name, precision=precision, flops=flops, num_bytes=moved, num_launches=1, num=num
        )
        for name, precision, flops, moved, num in found["operations"]
    ]
    return Taken(
        found["peak_bytes"],
        sum(one.flops * one.num for one in operations),
        sum(operation_seconds(one, gpu) * one.num for one in operations),
    )


def match(
    bench: Bench, problem: Problem, how: str, offset_bytes: int, rivals: Sequence[Taken]
) -> list[Choice | None]:
    """For each of torch's points the choice that computes least again among those that were seen to
    take no more memory; None: none was.

    What a choice takes more or less than torch is taken off its limit or added to it, and the next
    one is run. `offset_bytes` is what a step takes more than with its blocks compiled, as it is.
    """
    alike = [np.full(problem.num_blocks, kind) for kind in range(problem.num_treatments)]
    leanest = tuple(min(alike, key=problem.peak_bytes).tolist())
    limits = [one.peak_bytes - offset_bytes for one in rivals]
    best: list[Choice | None] = [None] * len(rivals)
    flops = [float("inf")] * len(rivals)
    for _ in range(_TRIES):
        solved = [solve(problem, limit) for limit in limits]
        choices = [leanest if one is None else tuple(one.choice.tolist()) for one in solved]
        seen = bench.under_plans(how, choices)
        for place, (choice, one) in enumerate(zip(choices, seen, strict=True)):
            excess = one.peak_bytes - rivals[place].peak_bytes
            if excess <= 0 and one.flops < flops[place]:
                best[place], flops[place] = choice, one.flops
            limits[place] -= excess + (limits[place] // _FINE if excess > 0 else 0)
    return best


def begin(name: str, python: str) -> tuple[Bench, Problem, Result]:
    """A model with each treatment on all of its blocks."""
    bench = Bench(name, python)
    problem, alike = bench.problem()
    names = ["as it is", *(" ".join([one, *how.values()]) for one, how in bench.treatments)]
    alike_by_name = dict(zip(names, alike, strict=True))
    return bench, problem, Result(name, bench.step_flops, {}, alike_by_name, ())


def measure(bench: Bench, problem: Problem, how: str) -> tuple[Taken, list[Pair]]:
    """torch at each budget, and ours: as it is first."""
    as_it_is, *rivals = bench.under_budgets(how)
    as_blocks = bench.under_plans("blocks", [(0,) * len(bench.blocks)])[0]
    offset = as_it_is.peak_bytes - as_blocks.peak_bytes
    choices = match(bench, problem, how, offset, rivals)
    pairs = []
    for budget, rival, choice in zip(BUDGETS[how], rivals, choices, strict=True):
        ours = None if choice is None else bench.under_plans(how, [choice])[0]
        pairs.append(Pair(how, budget, rival, _named(bench, choice), ours))
        print(bench.name, pairs[-1], flush=True)
    return as_it_is, pairs


def _named(bench: Bench, choice: Choice | None) -> str | None:
    """A plan in a few words: how many blocks keep what."""
    if choice is None:
        return None
    names = ["as it is", *(str(how.get("saves", "nothing")) for _, how in bench.treatments)]
    counts = Counter(names[kind] for kind in choice)
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def read_results(directory: Path) -> Iterator[Result]:
    """The results that there are, of this run and of earlier ones."""
    for name in MODELS:
        path = directory / f"{name}.json"
        if path.exists():
            held = json.loads(path.read_text(encoding="utf-8"))
            pairs = [
                Pair(**one | {key: one[key] and Taken(**one[key]) for key in ("torch", "ours")})
                for one in held["pairs"]
            ]
            taken = {
                field: {key: Taken(**one) for key, one in held[field].items()}
                for field in ("as_it_is", "alike")
            }
            yield Result(name, held["step_flops"], **taken, pairs=pairs)


def main() -> None:
    """Measures, and writes the page from all results that there are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True)
    parser.add_argument("--results", type=Path, default=Path("build/budget"))
    parser.add_argument("models", nargs="*", default=list(MODELS))
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    known: dict[str, tuple[Bench, Problem, Result]] = {}
    for how, name in itertools.product(BUDGETS, options.models):
        bench, problem, result = known.get(name) or begin(name, options.python)
        as_it_is, pairs = measure(bench, problem, how)
        found = replace(
            result,
            as_it_is={**result.as_it_is, how: as_it_is},
            pairs=(*result.pairs, *pairs),
        )
        known[name] = bench, problem, found
        text = json.dumps(asdict(found), indent=1)
        (options.results / f"{name}.json").write_text(text, encoding="utf-8")
        PAGE.write_text(render(list(read_results(options.results))), encoding="utf-8")


if __name__ == "__main__":
    main()
