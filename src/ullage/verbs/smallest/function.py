"""Searches the smallest server that holds an objective for some traffic: what `ullage smallest`
and `ullage.smallest` are.

    found = ullage.smallest(["vllm", "serve", "llama-3.1-8b"], slo="ttft=1s,tpot=50ms",
                            traffic="azure-conv:rate=4,duration=10m", gpu="l4,l40s,h100-80gb")
    found.best.words
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from ullage.answers.verb_answer import VerbAnswer
from ullage.ground.protocol.option import takes
from ullage.ground.protocol.plain import Mark
from ullage.verbs.serve.function import traffic_of
from ullage.verbs.smallest.options import SmallestOptions

if TYPE_CHECKING:
    from ullage.answers.block_kinds import Blocks
    from ullage.operate.serve.search.candidate import Candidate
    from ullage.operate.serve.search.search import Order, Run, Searched, Server
    from ullage.operate.serve.search.worth import Worth
    from ullage.operate.serve.tiers import Tiers

GPUS = ("l4", "l40s", "a100-80gb", "h100-80gb", "h200", "b200")
"""Those that are searched where none is named."""


@dataclass(frozen=True, slots=True)
class Smallest(VerbAnswer):
    """A finished search.

    Attributes:
        searched: the servers that were run, and what the closed forms said of the others.
        worths: what each flag of the server that holds is worth; empty where none does.
        capacity: how many times the traffic's rate it holds by the forecast; None: none holds.
        tiers: how large a cache of prefixes must be; None: no prompts are alike.
    """

    SCHEMA: ClassVar[str] = "ullage.search/1"

    searched: Annotated[Searched, Mark.FLAT]
    worths: tuple[Worth, ...]
    capacity: float | None
    tiers: Tiers | None

    @property
    def best(self) -> Server | None:
        """The smallest server that was run and holds the objective."""
        return self.searched.best

    @property
    def exit_code(self) -> int:
        """0: one holds the objective; 1: none of those that were run."""
        return 0 if self.best is not None else 1

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report."""
        from ullage.verbs.smallest.text import search_blocks

        return search_blocks((self.searched, self.worths, self.capacity, self.tiers))


@takes(SmallestOptions)
def smallest(options: SmallestOptions) -> Smallest:
    """Searches the smallest GPU of those named, their number and the flags; flags that the command
    has stay unchanged. Each claim is a run's.

    Raises:
        SpecError: the command, the traffic or the objective is not possible.
    """
    from ullage.facts.families.architecture import read_model
    from ullage.facts.families.kv_cache import token_bytes
    from ullage.operate.serve.search.bounds import Bounds
    from ullage.operate.serve.search.search import search_server
    from ullage.operate.serve.search.worth import find_capacity, find_worths
    from ullage.operate.serve.tiers import size_tiers

    order = _order(options)
    runner = options.runner or _runner(order, options)
    searched = search_server(order, runner, options.on_progress)
    worths: tuple[Worth, ...] = ()
    capacity = None
    if searched.best is not None:
        bounds = Bounds(order.config, order.traffic, order.slo)
        worths = find_worths(bounds, searched.best.candidate, order)
        capacity = find_capacity(bounds, searched.best.candidate, order)
    each = sum(token_bytes(layer) for layer in read_model(order.config).layers)
    tiers = size_tiers(order.traffic, each) if len(order.traffic.block_hashes) else None
    return Smallest(searched, worths, capacity, tiers)


def _order(options: SmallestOptions) -> Order:
    from ullage.facts.families.find import find_config
    from ullage.facts.gpus import find_gpu
    from ullage.ground.errors import SpecError
    from ullage.operate.serve.run import check_command
    from ullage.operate.serve.search.candidate import ALLOWED
    from ullage.operate.serve.search.search import Order
    from ullage.operate.serve.slo import parse_slo
    from ullage.operate.serve.traffic import load_traffic

    if options.slo is None:
        raise SpecError("no objective: add --slo, for example --slo ttft=1s,tpot=50ms")
    if not 0 < options.target <= 1:
        raise SpecError(f"target={options.target}: found no share; expected above 0, at most 1")
    for name in options.allow:
        if name not in ALLOWED:
            raise SpecError(f"allow: found {name!r}; expected any of {', '.join(ALLOWED)}")
    traffic = traffic_of(options)
    requests = load_traffic(traffic)
    if not len(requests):
        raise SpecError(f"traffic {traffic!r} has no requests")
    names = GPUS if options.gpu is None else options.gpu.split(",")
    model = check_command(options.program)
    return Order(
        tuple(options.program), find_config(model).config, requests, parse_slo(options.slo),
        tuple(find_gpu(name) for name in names), options.target, allowed=tuple(options.allow),
    )  # fmt: skip


def _runner(order: Order, options: SmallestOptions) -> Callable[[Candidate, tuple[str, ...]], Run]:
    from ullage.ground.errors import EnvironmentProblem
    from ullage.operate.serve.measures import measure
    from ullage.operate.serve.run import serve
    from ullage.operate.serve.search.search import Run

    python = None if options.python is None else os.fspath(options.python)

    def run(candidate: Candidate, words: tuple[str, ...]) -> Run:
        if options.on_progress is not None:
            options.on_progress(
                f"run on {candidate.num_gpus} x {candidate.gpu.slug}: {' '.join(words)}"
            )
        try:
            served = serve(
                words, order.traffic, gpu=candidate.gpu.slug, python=python, stdout_to_stderr=True
            )
        except EnvironmentProblem as error:
            return Run(0.0, 0, problem=str(error))
        outcome = served.outcome
        measures = measure(outcome, order.slo)
        return Run(
            measures.classes[0].goodput_frac or 0.0, outcome.engine.kv_cache_tokens,
            measures.num_preemptions, outcome.num_stuck, len(outcome.rejected),
        )  # fmt: skip

    return run
