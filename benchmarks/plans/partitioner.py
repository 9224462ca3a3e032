"""Recomputation under torch's `activation_memory_budget`, and under plans that take no more memory;
writes docs/results/plans.md.

    python -m benchmarks.plans.partitioner --python ENVIRONMENT/bin/python [--whole] [MODEL ...]

Both work on the same model (programs/budgeted.py), each of its blocks compiled, cut into forward
and backward by the same partitioner; with `--whole` torch has the whole model as one graph as well,
which takes minutes for each budget. The peak is that of the phantom; floating-point
operations are counted in the graphs that ran, as often as they ran (programs/counted.py). A plan
checkpoints some blocks, each with its own set of products kept, and nothing else: the solver of
`ullage fit` picks it by the operations that it repeats, and it counts where its own run takes no
more memory than torch's.
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
from typing import Any, NamedTuple

import numpy as np

from benchmarks.plans.partitioner_page import GPU, MODELS, Pair, Result, Taken, render
from benchmarks.plans.partitioner_products import Cost, sets_worth_keeping, settings
from benchmarks.results import publish
from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action
from ullage.clock import memory_bound
from ullage.explain.run import RunReport
from ullage.facts.gpus.catalog import Gpu
from ullage.facts.gpus.peaks import flops_per_s
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.torch_build import find_torch
from ullage.search.costs.blocks import Block
from ullage.search.costs.profile import read_profile
from ullage.search.runs.job import make_job, make_options
from ullage.search.runs.one import run_job
from ullage.search.solver.problem import Problem, Solution, make_problem
from ullage.search.solver.solve import solve
from ullage.verbs.run.options import RunOptions

PROGRAM = Path(__file__).with_name("programs") / "budgeted.py"
BUDGETS = {"blocks": (0.8, 0.5, 0.3, 0.1, 0.0), "whole": (0.3, 0.1)}
Choice = tuple[int, ...]
_TERA = 1e12
# Of two plans with as many operations, the one whose kernels take less time.
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
        self._taken: dict[Choice, Taken] = {}
        run, (found,) = self.run("nothing", [{}], is_described=True)
        outcome = run.program.plan
        if outcome is None or outcome.found is None:
            raise RuntimeError(f"{name}: {run.reason or 'is no model that trains'}")
        self.step_flops: int = found["flops"]
        self._made_for: MadeFor = outcome.found
        prefix = MODELS[name][1]
        self.blocks = tuple(
            Block(path, kind)
            for path, kind in self._made_for.modules.items()
            if path.startswith(prefix) and "." not in path.removeprefix(prefix)
        )
        # The products of each block that are kept; of a choice, 0 is a block as it is.
        self.kept: list[tuple[int, ...]] = []
        self._products = tuple(range(found["products"]))

    def run(
        self, how: str, trials: Sequence[Mapping[str, Any]], *, is_described: bool = False
    ) -> tuple[RunReport, list[dict[str, Any]]]:
        """A run of the program, and what it wrote down of each trial."""
        with tempfile.TemporaryDirectory(prefix="ullage-") as directory:
            given, output = Path(directory, "trials.json"), Path(directory, "found.json")
            given.write_text(json.dumps(trials), encoding="utf-8")
            batch = str(MODELS[self.name][0])
            words = [str(PROGRAM), self.name, batch, how, str(given), str(output)]
            options = replace(make_options(RunOptions([])), describes=is_described)
            job = make_job(words, device=self._device, python=self._python, options=options)
            run = run_job(job, None, stdout_to_stderr=True)
            if run.exit_code:
                raise RuntimeError(f"{' '.join(words)}: {run.reason}")
            return run, json.loads(output.read_text(encoding="utf-8"))

    def trial(self, choice: Sequence[int]) -> dict[str, Any]:
        """Of a treatment for each block."""
        return {"plan": self.plan(choice).text()} if any(choice) else {}

    def plan(self, choice: Sequence[int]) -> Plan:
        """The plan of a treatment for each block; 0: as it is."""
        actions = []
        for number in sorted(set(choice) - {0}):
            paths = tuple(
                block.path for block, one in zip(self.blocks, choice, strict=True) if one == number
            )
            technique, how = settings(self.kept[number - 1])
            actions.append(Action(technique, paths, how))
        named = {path: self._made_for.modules[path] for one in actions for path in one.modules}
        return Plan(tuple(actions), replace(self._made_for, modules=named))

    def under_budgets(self, how: str) -> list[Taken]:
        """What torch takes at each budget; as it is, first."""
        budgets = [{"budget": one} for one in (1.0, *BUDGETS[how])]
        return [read(one, self._device.gpu) for one in self.run(how, budgets)[1]]

    def under_plans(self, choices: Sequence[Choice]) -> dict[Choice, Taken]:
        """What plans take, each run once, with blocks compiled."""
        new = [one for one in dict.fromkeys(choices) if one not in self._taken]
        found = self.run("blocks", [self.trial(one) for one in new])[1] if new else []
        for choice, one in zip(new, found, strict=True):
            self._taken[choice] = read(one, self._device.gpu)
        return {one: self._taken[one] for one in choices}

    def all_alike(self) -> dict[Choice, Taken]:
        """What each set of products takes, kept in all blocks."""
        return self.under_plans([(kind,) * len(self.blocks) for kind, _ in enumerate(self.kept, 1)])

    def problem(self) -> Problem:
        """What each set of products of all blocks keeps and costs, blocks compiled: the operations
        that are computed again in place of seconds.
        """
        drops = [tuple(set(self._products) - {one}) for one in self._products]
        self.kept = [self._products, *drops, ()]
        trials = [self.trial((kind,) * len(self.blocks)) for kind in range(len(self.kept) + 1)]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            runs = list(pool.map(lambda one: self.run("blocks", [one]), trials))
        taken = [read(found, self._device.gpu) for _, (found,) in runs]
        costs = [
            Cost(read_profile(run.processes[0].record, self.blocks), one.flops)
            for (run, _), one in zip(runs, taken, strict=True)
        ]
        as_it_is, every, *without, nothing = costs
        found = sets_worth_keeping(every, without, nothing)
        self.kept = [one.numbers for one in found]
        profiles = [as_it_is.profile, *(one.cost.profile for one in found)]
        problem = make_problem(profiles, [np.zeros(len(self.blocks))] * len(profiles))
        return corrected(problem, self.all_alike(), taken[0])


def read(found: Mapping[str, Any], gpu: Gpu) -> Taken:
    """What the program wrote down."""
    total_flops, seconds = 0, 0.0
    for _, precision, flops, moved, num in found["operations"]:
        total_flops += flops * num
        computed_s = flops / flops_per_s(gpu, precision) if flops else 0.0
        seconds += num * max(computed_s, memory_bound(gpu, moved).s)
    return Taken(found["peak_bytes"], total_flops, seconds)


class Match(NamedTuple):
    """The choice that computes least again among those that were seen to take no more memory than
    torch at a budget, and what no choice computes less than again, by the model; None: none was
    found.
    """

    choice: Choice | None
    least_flops: float | None


def match(bench: Bench, problem: Problem, rivals: Sequence[Taken]) -> list[Match]:
    """For each of torch's points the best choice: of each set of products in all blocks, and of
    what the solver finds.

    What the solver's choice takes more or less than torch is taken off its limit or added to it,
    and the next one is run.
    """
    seen = bench.all_alike()
    leanest = min(seen, key=lambda one: seen[one].peak_bytes)
    limits = [one.peak_bytes for one in rivals]
    for _ in range(_TRIES):
        answers = [solve(problem, limit) for limit in limits]
        choices = [
            tuple(answer.choice.tolist()) if isinstance(answer, Solution) else leanest
            for answer in answers
        ]
        seen |= bench.under_plans(choices)
        for place, choice in enumerate(choices):
            excess = seen[choice].peak_bytes - rivals[place].peak_bytes
            limits[place] -= excess + (limits[place] // _FINE if excess > 0 else 0)
    bounds = [
        answer.bound_s * _TERA if isinstance(answer, Solution) else None for answer in answers
    ]
    return [Match(best(seen, one), bound) for one, bound in zip(rivals, bounds, strict=True)]


def corrected(problem: Problem, alike: Mapping[Choice, Taken], as_it_is: Taken) -> Problem:
    """A problem whose memory with each set was added up, with what was seen of the set."""
    rest, extra = problem.rest_bytes.copy(), problem.extra_s.copy()
    for choice, taken in alike.items():
        kind = choice[0]
        extra[:, kind] = (_dear(taken) - _dear(as_it_is)) / problem.num_blocks
        levels = problem.levels(np.array(choice, dtype=np.int64))
        highest = int(levels.argmax())
        if problem.own[highest] >= 0:  # a block's own stretch; elsewhere only what is kept tells
            rest[problem.own >= 0, kind] += taken.peak_bytes - int(levels[highest])
    return replace(problem, rest_bytes=rest, extra_s=extra)


def _dear(taken: Taken) -> float:
    """What plans are chosen by, in the place of seconds."""
    return taken.flops / _TERA + _PER_SECOND * taken.seconds


def best(seen: Mapping[Choice, Taken], rival: Taken) -> Choice | None:
    """The choice that computes least of those that take no more memory."""
    fitting = [one for one, taken in seen.items() if taken.peak_bytes <= rival.peak_bytes]
    return min(fitting, key=lambda one: (seen[one].flops, seen[one].seconds), default=None)


def measure(name: str, python: str, *, is_whole: bool) -> Result:
    """torch at each budget, and ours."""
    bench = Bench(name, python)
    problem = bench.problem()
    alike = {_words(bench.kept[choice[0] - 1]): one for choice, one in bench.all_alike().items()}
    as_it_is: dict[str, Taken] = {}
    rivals: list[tuple[str, float, Taken]] = []
    for how in ("blocks", "whole") if is_whole else ("blocks",):
        as_it_is[how], *found = bench.under_budgets(how)
        rivals += zip(itertools.repeat(how), BUDGETS[how], found, strict=False)
    pairs = []
    matches = match(bench, problem, [one for _, _, one in rivals])
    for (how, budget, rival), (choice, least) in zip(rivals, matches, strict=True):
        ours = None if choice is None else bench.under_plans([choice])[choice]
        pairs.append(Pair(how, budget, rival, _named(bench, choice), ours, least))
        print(bench.name, pairs[-1], flush=True)
    return Result(name, bench.step_flops, as_it_is, alike, pairs)


def _named(bench: Bench, choice: Choice | None) -> str | None:
    """A plan in a few words: how many blocks keep what."""
    if choice is None:
        return None
    counts = Counter("as it is" if not kind else _words(bench.kept[kind - 1]) for kind in choice)
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


def _words(kept: Sequence[int]) -> str:
    """Products that are kept, in a word."""
    return "+".join(map(str, kept)) or "none"


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
    parser.add_argument("--python", help="without it the page is written again, and nothing is run")
    parser.add_argument("--results", type=Path, default=Path("build/budget"))
    parser.add_argument("--whole", action="store_true", help="torch's whole graphs as well")
    parser.add_argument("models", nargs="*", default=list(MODELS))
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    for name in options.models if options.python else ():
        found = measure(name, options.python, is_whole=options.whole)
        text = json.dumps(asdict(found), indent=1)
        (options.results / f"{name}.json").write_text(text, encoding="utf-8")
    torch = find_torch(options.python).version if options.python else None
    publish("activation-budget", render(list(read_results(options.results)), torch))


if __name__ == "__main__":
    main()
