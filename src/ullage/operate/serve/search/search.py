"""Searches the smallest server that holds an objective for some traffic.

    result = search_server(order, run)
    result.best.words, result.best.goodput_frac

Closed forms bound first: which GPUs the model fits, how many tokens each cache has, and by the
forecast which share of the requests meets the objective, with vLLM's own defaults and, where those
fail, with other flags. The smallest server that should hold it is run, in virtual time; if it
holds, so is the next smaller one, until one fails; if not, the next larger one. What is said to
hold has been run with the very command that is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Final, NamedTuple

from ullage.facts.families.architecture import read_model
from ullage.facts.families.config import Config
from ullage.facts.gpus import Gpu
from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import As, Mark
from ullage.operate.serve.search.bounds import Bounds, Judged
from ullage.operate.serve.search.candidate import Candidate, given_flags
from ullage.operate.serve.slo import Slo
from ullage.operate.serve.traffic import Traffic
from ullage.players.eager.serving.serving_plan import ServingPlan
from ullage.search.runs.search import search

_ROUND: Final = 1024
_RANKS: Final = (1, 2, 4, 8)
_SEQS: Final = (32, 64, 128, 256, 512, 1024)
_TOKENS: Final = (512, 1024, 2048, 4096, 8192, 16384)
_SHARE: Final = 0.95
_ROUNDS: Final = 3
_GAIN: Final = 0.002
"""Less is not an improvement: a flag must be worth its place in the command."""
_SLACK: Final = 0.02
_DOWN: Final = 0.15
"""A forecast that is so far from the target may be wrong by it; beyond, a run is not spent."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a search.

    Attributes:
        command: `vllm serve MODEL ...`; flags that it has stay unchanged.
        config: of the model.
        traffic, slo: what is to be held.
        target_frac: the share of all requests that must meet the objective.
        gpus: of the catalogue, in any order.
        most_gpus: that share the model.
        allowed: of candidate.ALLOWED, what may change the model's numbers.
        most_runs: of the engine.
    """

    command: tuple[str, ...]
    config: Annotated[Config, Mark.NO_KEY]
    traffic: Traffic
    slo: Slo
    gpus: Annotated[tuple[Gpu, ...], Mark.NO_KEY]
    target_frac: float = 0.99
    most_gpus: Annotated[int, Mark.NO_KEY] = 8
    allowed: tuple[str, ...] = ()
    most_runs: Annotated[int, Mark.NO_KEY] = 6


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a run of the engine.

    Attributes:
        goodput_frac: the share of all requests that met the objective.
        tokens: of the cache, as the engine printed them.
        num_preemptions: of all requests.
        num_stuck, num_refused: requests that got no answer.
        problem: why the engine did not start; "": it did.
    """

    goodput_frac: float
    tokens: int
    num_preemptions: int = 0
    num_stuck: int = 0
    num_refused: int = 0
    problem: str = ""


Runner = Callable[[Candidate, tuple[str, ...]], Run]
"""Runs a command on a candidate's GPU."""


@dataclass(frozen=True, slots=True)
class Server:
    """A candidate that was run.

    Attributes:
        candidate, words: and its command.
        forecast_frac, forecast_tokens: what the closed forms said.
        run: what the run found.
        is_held: the objective holds, and every request has an answer.
    """

    candidate: Annotated[Candidate, Mark.FLAT]
    words: tuple[str, ...]
    forecast_frac: float
    forecast_tokens: int
    run: Annotated[Run, Mark.FLAT]
    is_held: bool


@dataclass(frozen=True, slots=True)
class Searched:
    """A search, finished or on its way.

    Attributes:
        order: what was searched.
        best: the smallest server that holds the objective; None: none of those that were run.
        servers: all that were run, in the order of their runs.
        judged: the best of each GPU and number by the closed forms, the smallest first; those
            beyond what was needed are not there.
    """

    order: Annotated[Order, Mark.FLAT]
    best: Server | None
    servers: Annotated[tuple[Server, ...], As("runs")]
    judged: tuple[Judged, ...]

    def has_run(self, judged: Judged) -> bool:
        """True if a candidate was run."""
        return judged.candidate in [server.candidate for server in self.servers]


def search_server(
    order: Order, run: Runner, on_progress: Callable[[str], None] | None = None
) -> Searched:
    """Searches; `run` is called at most `order.most_runs` times.

    Raises:
        SpecError: the command has no place for any of the GPUs.
    """
    say = on_progress or (lambda _: None)
    bounds = Bounds(order.config, order.traffic, order.slo)
    candidates = candidates_of(order)

    def propose(now: Searched) -> _Step | None:
        if now.best is not None:
            return _smaller(now, now.best)
        if now.judged and _should_hold(now.judged[-1], order) and not now.has_run(now.judged[-1]):
            return None  # there was no run left for it
        judged: list[Judged] = []
        for candidate in candidates[len(now.judged) :]:
            judged.append(improve(bounds, candidate, order))
            say(_line(judged[-1]))
            if _should_hold(judged[-1], order):
                may_run = len(now.servers) < order.most_runs
                return _Step(tuple(judged), judged[-1] if may_run else None)
        return _Step(tuple(judged)) if judged else None

    def attempt(step: _Step) -> Server | None:
        return None if step.to_run is None else _run(step.to_run, order, run)

    def judge(now: Searched, step: _Step, server: Server | None) -> Searched:
        now = replace(now, judged=now.judged + step.judged)
        if server is None:
            return now
        best = server if server.is_held else now.best
        return replace(now, best=best, servers=(*now.servers, server))

    return search(Searched(order, None, (), ()), propose, attempt, judge)


class _Step(NamedTuple):
    """The judgements of more candidates, and the one to run; None: none should hold."""

    judged: tuple[Judged, ...]
    to_run: Judged | None = None


def _should_hold(judged: Judged, order: Order) -> bool:
    return not judged.reason and judged.goodput_frac >= order.target_frac - _SLACK


def _smaller(now: Searched, best: Server) -> _Step | None:
    """The next smaller server than the best, unless the last of them has failed."""
    place = [judged.candidate for judged in now.judged].index(best.candidate)
    if not place or not now.servers[-1].is_held or len(now.servers) >= now.order.most_runs:
        return None
    smaller = now.judged[place - 1]
    is_near = smaller.goodput_frac >= now.order.target_frac - _DOWN and not smaller.reason
    return _Step((), smaller) if is_near and not now.has_run(smaller) else None


def _run(judged: Judged, order: Order, run: Runner) -> Server:
    words = judged.candidate.words(order.command)
    result = run(judged.candidate, words)
    is_held = (
        not result.problem and not result.num_stuck and not result.num_refused
        and result.goodput_frac >= order.target_frac
    )  # fmt: skip
    return Server(
        judged.candidate, words, judged.goodput_frac, judged.tokens, result, is_held
    )  # fmt: skip


def _line(judged: Judged) -> str:
    candidate = judged.candidate
    name = f"{candidate.num_gpus} x {candidate.gpu.slug}"
    if judged.reason:
        return f"{name}: {judged.reason}"
    return f"{name}: {judged.tokens:,} tokens, {100 * judged.goodput_frac:.1f} % by the forecast"


def candidates_of(order: Order) -> tuple[Candidate, ...]:
    """Every GPU and number that the model can be shared among, the smallest first.

    Raises:
        SpecError: there is none, or a prompt of the traffic is longer than the command allows.
    """
    given = given_flags(order.command)
    needed = int((order.traffic.prompt_tokens + order.traffic.output_tokens).max(initial=1))
    length = given.fields.get("context")
    if isinstance(length, int) and length < needed:
        raise SpecError(
            f"the longest request has {needed:,} tokens, and the command says --max-model-len "
            f"{length}: it would be refused; leave the flag out, or give {needed}"
        )
    context = -(-needed // _ROUND) * _ROUND
    model = read_model(order.config)
    if model.context is not None and needed > model.context:
        raise SpecError(
            f"the longest request has {needed:,} tokens, and {order.config.name} was made for "
            f"{model.context:,}; take shorter requests, or another model"
        )
    context = min(context, model.context or context)
    devices = list(_devices(order, given.fields, context))
    if not devices:
        raise SpecError("none of the GPUs can share the model's heads as the command says")
    return tuple(sorted(devices, key=lambda each: (each.total_bytes, each.num_gpus)))


def _devices(order: Order, given: dict[str, object], context: int) -> Iterator[Candidate]:
    model = read_model(order.config)
    ranks = given.get("tensor_parallel")
    for gpu in order.gpus:
        for number in _RANKS if ranks is None else (int(str(ranks)),):
            try:
                model.check_tensor_parallel(number)
            except SpecError:
                continue
            if number > order.most_gpus:
                continue
            fields = {"context": context, **given, "tensor_parallel": number}
            plan = ServingPlan(gpu=gpu, **fields)  # type: ignore[arg-type]
            chosen = ["context"] if "context" not in given else []
            if number > 1 and ranks is None:
                chosen.append("tensor_parallel")
            yield Candidate(gpu, plan, tuple(chosen))


def improve(bounds: Bounds, candidate: Candidate, order: Order) -> Judged:
    """The best flags of one GPU and number by the closed forms: vLLM's defaults where those hold
    the objective, else the flags that help most, one after another.
    """
    best = bounds.judge(candidate)
    for _ in range(_ROUNDS):
        if best.goodput_frac >= order.target_frac:
            break
        better = [bounds.judge(move) for move in _moves(best, order)]
        top = max(better, key=lambda each: (each.goodput_frac, each.tokens), default=best)
        if top.goodput_frac < best.goodput_frac + _GAIN and not (best.reason and not top.reason):
            break
        best = top
    return best


def _moves(judged: Judged, order: Order) -> Iterator[Candidate]:
    """Candidates that differ by one flag; none that the command has."""
    candidate, plan = judged.candidate, judged.candidate.plan
    taken = {*given_flags(order.command).fields, *candidate.chosen}
    if "utilization" not in taken:
        yield candidate.with_fields(utilization=_SHARE)
    if "fp8-cache" in order.allowed and "kv" not in taken:
        yield candidate.with_fields(kv="fp8")
    if "fp8-weights" in order.allowed and "weights" not in taken:
        yield candidate.with_fields(weights="fp8")
    if "max_seqs" not in taken:
        yield from (candidate.with_fields(max_seqs=number) for number in _SEQS)
    if "max_batched_tokens" not in taken:
        yield from (
            candidate.with_fields(max_batched_tokens=number)
            for number in _TOKENS
            if number >= (plan.max_seqs or 0)
        )
