"""The time of a step: the log played with what each piece of work costs, three times over: all
costs at their lower bounds, as they are likely, and at their upper bounds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy.typing as npt

from ullage.clock.contention import Bound
from ullage.clock.cost import Category, Cost
from ullage.clock.duration import Duration
from ullage.clock.exposure import Busy, Exposure, joined_share, measure_exposure
from ullage.clock.given_work import CollectiveCall, Product
from ullage.clock.host import HostInterval
from ullage.clock.simulation import Moment, Run, WorkTimes, simulate
from ullage.clock.spread import Spread, waiting_share
from ullage.clock.step_time import NO_MODULE, Interval, Share, Span, StepTime
from ullage.facts.gpus import Gpu
from ullage.facts.gpus.peaks import flops_per_s
from ullage.log.record_schema import WORK_MARKS
from ullage.log.work_log import EntryKind, WorkLog

_STEP: Final = WORK_MARKS.index("step")
_FORWARD: Final = WORK_MARKS.index("forward_begin")
_PARTS: Final = {
    WORK_MARKS.index("forward_begin"): "forward",
    WORK_MARKS.index("backward_begin"): "backward",
    WORK_MARKS.index("optimizer_begin"): "optimizer",
    WORK_MARKS.index("forward_end"): "other",
    WORK_MARKS.index("backward_end"): "other",
    WORK_MARKS.index("optimizer_end"): "other",
}
_ENDS: Final = (0, 1, 2)  # low, likely, high
_HIGH: Final = 2
_LOW: Final = 0  # what runs side by side is as fast as alone
_LIKELY: Final = 1
# How many times as much as by its law messages slow kernels (contention.py). The worst slowdown
# that arXiv:2507.03114 measured, 40 %, is twice its mean, 18.9 %.
_CONTENTION: Final = (0.0, 1.0, 2.0)


class Batch(NamedTuple):
    """The batch of a step; 0: not known."""

    num_samples: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class _Log:
    rows: list[tuple[int, ...]]
    works: Sequence[object]
    costs: Sequence[Cost]
    graph_costs: Mapping[int, Cost]
    modules: Sequence[str]


def measure_step(
    log: WorkLog,
    gpu: Gpu,
    works: Sequence[object],
    costs: Sequence[Cost],
    host: HostInterval,
    *,
    modules: Sequence[str] = (),
    batch: Batch | None = None,
    num_ranks: int = 1,
    basis: Iterable[str] = (),
    corrections: tuple[str, ...] = (),
) -> StepTime | None:
    """The time of the last step in a log; None where no step ended.

    The first step is timed only where there is no other: it begins with its first forward, and
    makes the optimizer's states. A step ends when all the work is done that was given before its
    end, so that work which the host gave ahead counts where it runs.

    Args:
        works: the pieces of work that rows refer to; those of `given_work` say what they are.
        costs: of each of them on the GPU.
        host: what the host needs to give a piece of work.
        modules: the names of scopes.
        batch: what the step works on; None: not known.
        num_ranks: how many ranks, this one included, wait for one another.
        basis: what else the times rest on.
        corrections: what in the costs was corrected by measurements, and what was not.
    """
    rows, graphs = log.entries.tolist(), graph_costs(log.captured, costs)
    read = _Log(rows, works, costs, graphs, modules)
    runs = [_play(read, log.first, host, end) for end in _ENDS]
    steps = _whole_steps(runs[_LIKELY])
    if not steps:
        return None
    last = _Step(read, runs, *steps[-1])
    spread = last.spread(num_ranks)
    # The stated rate is that of the precision of most products.
    precision, flops = max(last.products().items(), key=lambda item: item[1], default=("", 0))
    sentences = [*corrections, *basis, *_assume(host, num_ranks), *last.basis()]
    return StepTime(
        step=spread.of(last.interval()),
        steps=tuple(
            spread.of(_ordered([r.moments[end].done_s - r.moments[begin].done_s for r in runs]))
            for begin, end in steps
        ),
        device_idle=last.idle(),
        host_waits=last.host_waits(),
        categories=last.shares(lambda cost, _row, _part: cost.category.value, spread),
        parts=last.shares(lambda _cost, _row, part: part, spread),
        modules=last.shares(lambda _cost, row, _part: _module_name(modules, row[2]), spread),
        unknown=last.unknown(),
        flops=last.flops(),
        peak_flops_per_s=flops_per_s(gpu, precision) if flops else 0.0,
        num_tokens=batch.num_tokens if batch else 0,
        num_samples=batch.num_samples if batch else 0,
        spans=last.spans(),
        basis=tuple(dict.fromkeys(sentences)),
        extremes=spread.extremes(last.interval()),
        corrections=corrections,
    )


def _assume(host: HostInterval, num_ranks: int) -> Iterator[str]:
    """The assumptions of every time."""
    low, likely, high = (f"{costs.launch_s * 1e6:.0f}" for costs in host)
    yield (
        f"the host: {likely} us for each operator ({low} to {high}), assumed; the program's other "
        "time on the CPU, such as loading data, is not counted"
    )
    if num_ranks > 1:
        yield "the other ranks: as far as this one whenever a collective begins"
    yield (
        "kernels on several streams share the device, and messages on one link share that; in the "
        "lower bound each is as fast as alone"
    )
    yield (
        "the interval: errors of computation, memory, links and host are independent, those of one "
        "of these and of unknown kernels go in one direction; GPUs of a kind are 8 % apart "
        "(arXiv:2208.11035), assumed normal, and ranks wait for the slowest of them"
    )
    yield (
        "kernels beside a message are slower by the multiprocessors or the bandwidth that it "
        "takes; in the lower bound by nothing, in the upper bound by twice as much"
    )


def _module_name(modules: Sequence[str], scope: int) -> str:
    return modules[scope] if 0 <= scope < len(modules) else NO_MODULE


def graph_costs(captured: npt.NDArray[Any], costs: Sequence[Cost]) -> dict[int, Cost]:
    """The cost of each graph."""
    rows: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
    for row in captured.tolist():
        rows[row[0]].append(row)
    return {graph: graph_cost(of, costs) for graph, of in rows.items()}


def graph_cost(captured: Iterable[Sequence[int]], costs: Sequence[Cost]) -> Cost:
    """The cost of a graph with these rows: its streams run at once, and the one with most work is
    the longest. A node of a graph needs no launch by the host.
    """
    lanes: defaultdict[int, list[Cost]] = defaultdict(list)
    for _, work, _, _, lane, _, _ in captured:
        lanes[lane].append(costs[work])
    return _longest(list(lanes.values()))


def _longest(lanes: Sequence[Sequence[Cost]]) -> Cost:
    sums = [[sum(_ends(cost)[end] for cost in lane) for lane in lanes] for end in _ENDS]
    longest = max(lanes, key=lambda lane: sum(cost.duration.s for cost in lane))
    seconds = Counter[Category]()
    for cost in longest:
        seconds[cost.category] += cost.duration.s  # type: ignore[assignment]
    duration = Duration(
        max(sums[0]), max(sums[1]), max(sums[2]), "the streams of a CUDA graph run at once"
    )
    flops = sum(cost.flops for lane in lanes for cost in lane)
    return Cost(duration, seconds.most_common(1)[0][0], "CUDA graph", flops)


def _ends(cost: Cost) -> tuple[float, float, float]:
    return cost.duration.low_s, cost.duration.s, cost.duration.high_s


def _play(log: _Log, first: int, host: HostInterval, end: int) -> Run:
    seconds = [_ends(cost)[end] for cost in log.costs]
    graphs = {graph: _ends(cost)[end] for graph, cost in log.graph_costs.items()}
    uses = None if end == _LOW else [cost.use for cost in log.costs]
    times = WorkTimes(seconds, graphs, uses, _CONTENTION[end])
    return simulate(log.rows, first, times, host[end])


def _whole_steps(run: Run) -> list[tuple[int, int]]:
    """The steps, each as two places among the moments. A step that ends twice (two optimizers step
    right after another) ends the second time; where the count begins again, what came
    before was not a step. The only step begins with its first forward.
    """
    ends: list[tuple[int, int]] = []
    forward: int | None = None  # the first since the last end of a step
    alone: int | None = None
    for place, moment in enumerate(run.moments):
        if moment.mark == _FORWARD and forward is None:
            forward = place
        if moment.mark != _STEP:
            continue
        if ends and moment.number == ends[-1][1]:
            ends.pop()
        elif not ends or moment.number < ends[-1][1]:
            ends.clear()
            alone = forward
        ends.append((place, moment.number))
        forward = None
    places = [place for place, _ in ends]
    if len(places) == 1 and alone is not None:
        places.insert(0, alone)
    return list(pairwise(places))


def _ordered(seconds: Sequence[float]) -> Interval:
    """Costs that overlap may make a difference shrink where each of them grows."""
    low, likely, high = seconds
    return Interval(min(low, likely), likely, max(likely, high))


class _Step:
    def __init__(self, log: _Log, runs: Sequence[Run], begin: int, end: int) -> None:
        self._log, self._runs = log, runs
        self._bounds = [(run.moments[begin], run.moments[end]) for run in runs]
        first, last = runs[_LIKELY].moments[begin].entry, runs[_LIKELY].moments[end].entry
        self._parts = _parts(runs[_LIKELY].moments, len(log.rows))
        self._given = [
            index
            for index in range(first, last)
            if log.rows[index][5] in (EntryKind.GIVEN, EntryKind.GRAPH)
        ]
        self._exposures = [self._measure(end) for end in _ENDS]

    def interval(self) -> Interval:
        return _ordered([end.done_s - begin.done_s for begin, end in self._bounds])

    def spread(self, num_ranks: int) -> Spread:
        """The interval around the likely value where errors of two sources are independent."""
        exposed_s = self._exposures[_LIKELY].exposed_s
        costs = [(self._cost(row), exposed_s.get(row, 0.0)) for row in self._given]
        sizes = [work.num_gpus for work in self._log.works if isinstance(work, CollectiveCall)]
        is_job = any(cost.load is not None for cost, _ in costs)
        computed_s = sum(seconds for cost, seconds in costs if isinstance(cost.use, Bound))
        computed = computed_s / (self.interval().s or 1.0)
        ranks = max([2, num_ranks, *sizes]) if is_job else 1
        return Spread(self._joined(_LOW), self._joined(_HIGH), computed, ranks)

    def _joined(self, end: int) -> float:
        """How much of the deviation to a bound, which has all errors in one direction, is left."""
        likely, bound = self._exposures[_LIKELY], self._exposures[end]
        errors = []
        for row in self._given:
            error_s = bound.exposed_s.get(row, 0.0) - likely.exposed_s.get(row, 0.0)
            errors.append((self._cost(row), error_s))
        return joined_share(errors, bound.idle_s - likely.idle_s)

    def idle(self) -> Interval:
        return _ordered([exposure.idle_s for exposure in self._exposures])

    def host_waits(self) -> Interval:
        waits = (self._waits(end) for end in _ENDS)
        return _ordered([sum(until - start for _, start, until in each) for each in waits])

    def flops(self) -> float:
        return sum(self._cost(index).flops for index in self._given)

    def basis(self) -> list[str]:
        """The basis of the costs, most time first."""
        seconds = Counter[str]()
        for index in self._given:
            cost = self._cost(index)
            text = f"{cost.category.value}: {cost.duration.basis}"
            seconds[text] += cost.duration.s  # type: ignore[assignment]
        return [text for text, _ in seconds.most_common(12)]

    def shares(
        self, name_of: Callable[[Cost, tuple[int, ...], str], str], spread: Spread | None = None
    ) -> tuple[Share, ...]:
        """The step divided by a name for each piece of work, and the wait for slower ranks."""
        names = {
            index: name_of(self._cost(index), self._log.rows[index], self._parts[index])
            for index in self._given
        }
        counts = Counter(names.values())
        busy = [exposure.busy_by(names) for exposure in self._exposures]
        exposed = [exposure.exposed_by(names) for exposure in self._exposures]
        shares = [
            Share(
                name,
                _ordered([of[name] for of in busy]),
                _ordered([of[name] for of in exposed]),
                count,
            )
            for name, count in counts.items()
        ]
        if spread is not None and spread.waiting:
            shares.append(waiting_share(spread.waiting * self.interval().s))
        return tuple(sorted(shares, key=lambda share: -share.busy.s))

    def unknown(self) -> tuple[Share, ...]:
        shares = self.shares(
            lambda cost, _row, _part: cost.name if cost.category is Category.UNKNOWN else ""
        )
        return tuple(share for share in shares if share.name)

    def products(self) -> Counter[str]:
        """Floating-point operations by precision."""
        flops = Counter[str]()
        for index in self._given:
            row = self._log.rows[index]
            work = self._log.works[row[1]] if row[5] == EntryKind.GIVEN else None
            if isinstance(work, Product):
                flops[work.precision] += self._cost(index).flops  # type: ignore[assignment]
        return flops

    def spans(self) -> tuple[Span, ...]:
        begin, _ = self._bounds[_LIKELY]
        run = self._runs[_LIKELY]
        # The stream with most work is the first.
        counts = Counter(self._log.rows[index][4] for index in self._given)
        lanes = {lane: number for number, (lane, _) in enumerate(counts.most_common())}
        work = [
            Span(
                start_s=run.starts[index] - begin.done_s,
                duration_s=run.ends[index] - run.starts[index],
                stream=lanes[self._log.rows[index][4]],
                name=self._cost(index).name,
                category=self._cost(index).category.value,
                module=_module_name(self._log.modules, self._log.rows[index][2]),
                part=self._parts[index],
                position=self._log.rows[index][3],
            )
            for index in self._given
        ]
        waits = [
            Span(
                start - begin.done_s, until - start, -1, "the host waits", "host", "",
                self._parts[index], self._log.rows[index][3],
            )
            for index, start, until in self._waits(_LIKELY)
        ]  # fmt: skip
        return tuple(sorted([*work, *waits]))

    def _cost(self, index: int) -> Cost:
        other, work, _, _, _, kind, _ = self._log.rows[index]
        return self._log.graph_costs[other] if kind == EntryKind.GRAPH else self._log.costs[work]

    def _measure(self, end: int) -> Exposure:
        begin_s, end_s = (moment.done_s for moment in self._bounds[end])
        run = self._runs[end]
        # Where several streams are busy, computation hides copies, and both hide communication.
        ranks = {Category.COMMUNICATION: 2, Category.COPIES: 1}
        busy = [
            Busy(run.starts[row], run.ends[row], row, ranks.get(self._cost(row).category, 0))
            for row in self._given
        ]
        return measure_exposure(busy, begin_s, end_s)

    def _waits(self, end: int) -> list[tuple[int, float, float]]:
        first, last = (moment.entry for moment in self._bounds[end])
        return [wait for wait in self._runs[end].host_waits if first <= wait[0] < last]


def _parts(moments: Sequence[Moment], count: int) -> list[str]:
    parts: list[str] = []
    part = "other"
    for moment in moments:
        parts += [part] * (moment.entry - len(parts))
        part = _PARTS.get(moment.mark, part)
    return parts + [part] * (count - len(parts))
