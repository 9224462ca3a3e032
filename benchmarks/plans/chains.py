"""Uniform, square-root and optimal segments of a program's chain of modules, each run and seen.

report = compare_segments(["train.py"], python=python)
report.cuts[0].lengths, report.cuts[0].allocated_bytes, report.cuts[0].recomputed
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.plans import least_peak
from benchmarks.plans.closed_forms import best_num_segments
from ullage.act.techniques.checkpoint_segments import CHECKPOINT_SEGMENTS
from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.means.tiling import even_lengths
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action
from ullage.explain.run import RunReport
from ullage.explain.verdict import Verdict
from ullage.facts.gpus.catalog import Gpu
from ullage.ground.errors import SpecError
from ullage.log.category import Category
from ullage.log.model import Int64Array, Record
from ullage.players.phantom.device import choose_device
from ullage.search.costs.blocks import Block
from ullage.search.costs.measure import Runner, RunRequest
from ullage.search.costs.profile import Profile, Stretch, kept_by_module, read_profile
from ullage.search.runner import make_runner, make_search_job
from ullage.search.runs.trials import Trials
from ullage.verbs.run.options import RunOptions

_KIND = "Sequential"
# Of fewer modules, there is nothing to compare.
_LEAST_MODULES = 4
_AS_LITTLE = 1.001


@dataclass(frozen=True, slots=True)
class Cut:
    """A segmentation, and what was seen of it.

    Attributes:
        name: for people: "square root, 4".
        lengths: modules in each segment; empty: nothing is checkpointed.
        spares_last: the last segment does not run again.
        plan: to be written; None of none.
        used_bytes, allocated_bytes: the device's and the allocator's peaks.
        recomputed: floating-point operations more than without, as a share of a step's.
        step_s: seconds of a step by the clock.
        why_not: why it did not run; empty if it did.
    """

    name: str
    lengths: tuple[int, ...]
    spares_last: bool = False
    plan: Plan | None = None
    used_bytes: int = 0
    allocated_bytes: int = 0
    recomputed: float = 0.0
    step_s: float = 0.0
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Chain:
    """Modules that are called one after another.

    Attributes:
        path: of what holds them; "" if it is the model itself.
        parts: they.
        units: how many belong together, in order. What has no parameters, such as an activation
            that may change its input in place, belongs to what is before it.
    """

    path: str
    parts: tuple[Block, ...]
    units: tuple[int, ...]

    def lengths(self, num_units: Sequence[int]) -> tuple[int, ...]:
        """Modules in segments of so many units each."""
        ends = np.cumsum([0, *self.units])[np.cumsum([0, *num_units])]
        return tuple(np.diff(ends).tolist())


@dataclass(frozen=True, slots=True)
class ChainReport:
    """The segmentations of a chain side by side.

    Attributes:
        program: its words.
        torch: its version.
        gpu: whose rates the seconds are by.
        path: of the chain; "" if it is the model itself.
        modules: the classes of what it holds, in order.
        num_units: how many of these, or groups of these, may be segments.
        cuts: nothing checkpointed first.
        failure: why the program failed by itself; empty if it did not.
        num_runs, wall_s: how many runs, and how long they took.
    """

    program: tuple[str, ...]
    torch: str
    gpu: Gpu
    path: str
    modules: tuple[str, ...]
    num_units: int
    cuts: tuple[Cut, ...]
    failure: str = ""
    num_runs: int = 0
    wall_s: float = 0.0

    @property
    def best(self) -> Cut | None:
        """The fastest segments of those under which the least is allocated, to a thousandth; None:
        none ran.
        """
        ran = [cut for cut in self.cuts if cut.lengths and not cut.why_not]
        least = min((cut.allocated_bytes for cut in ran), default=0)
        as_little = [cut for cut in ran if cut.allocated_bytes <= least * _AS_LITTLE]
        return min(as_little, key=lambda cut: cut.step_s, default=None)


def compare_segments(
    program: Sequence[str],
    path: str | None = None,
    *,
    python: str,
    gpu: str | None = None,
    steps: int | None = None,
) -> ChainReport:
    """Runs a program with its chain in several segmentations, on a device without end.

    Args:
        program: its words, as for `ullage.run`.
        path: of a torch.nn.Sequential; None: that which keeps the most for backward.
        python, gpu, steps: as for `ullage.run`.

    Raises:
        SpecError: there is no such chain.
    """
    device = choose_device(gpu)
    job = make_search_job(RunOptions(program, python=python, steps=steps), device)
    job = replace(job, options=replace(job.options, has_clock=True))
    started_s = time.monotonic()
    with Trials(job) as trials:
        report = compare_cuts(make_runner(trials, job), device.gpu, path)
        wall_s = time.monotonic() - started_s
        words = job.program.argv
        return replace(report, program=words, num_runs=trials.num_runs, wall_s=wall_s)


def compare_cuts(run: Runner, gpu: Gpu, path: str | None) -> ChainReport:
    """The same by what makes runs.

    Args:
        run: makes runs.
        gpu: whose rates count.
        path: of the chain; None: that which keeps the most for backward.

    Raises:
        SpecError: there is no such chain.
    """
    (base,) = run([RunRequest(describes=True)])
    outcome = base.program.plan
    report = ChainReport(base.program.argv, base.torch, gpu, path or "", (), 0, ())
    if outcome is None or outcome.found is None or base.verdict is Verdict.FAILED:
        return replace(report, failure=base.reason or "it trains no model")
    chain = find_chain(base.processes[0].record, outcome.found.modules, path)
    comparison = _Comparison(run, outcome.found, chain)
    return replace(
        report,
        path=chain.path,
        modules=tuple(part.kind for part in chain.parts),
        num_units=len(chain.units),
        cuts=tuple(comparison.cuts(base)),
    )


def find_chain(record: Record, kinds: Mapping[str, str], path: str | None) -> Chain:
    """A chain of a program, by its path or by what it keeps for backward.

    Raises:
        SpecError: there is none, or none at that path.
    """
    parts_of: dict[str, list[str]] = {}
    for name in kinds:
        parent = name.rpartition(".")[0]
        if name and kinds.get(parent) == _KIND:
            parts_of.setdefault(parent, []).append(name)
    chains = {name: parts for name, parts in parts_of.items() if len(parts) >= _LEAST_MODULES}
    if path is not None and path not in chains:
        known = ", ".join(repr(chain) for chain in chains) or "none"
        raise SpecError(
            f"{path!r} is no torch.nn.Sequential of {_LEAST_MODULES} modules or more; the "
            f"program's model has: {known}"
        )
    if not chains:
        raise SpecError(
            f"the program's model has no torch.nn.Sequential of {_LEAST_MODULES} modules or more; "
            "`ullage fit` chooses among modules that are called in other ways"
        )
    kept_bytes = kept_by_module(record)
    owned = zip(record.claims.name, record.claims.category, strict=True)
    owners = {name.rpartition(".")[0] for name, kind in owned if kind is Category.PARAMETER}

    def kept_in(name: str) -> int:
        inside = f"{name}." if name else ""
        return sum(size for inner, size in kept_bytes.items() if inner.startswith(inside))

    def has_parameters(name: str) -> bool:
        return any(owner == name or owner.startswith(f"{name}.") for owner in owners)

    chosen = path if path is not None else max(chains, key=kept_in)
    starts = [place for place, part in enumerate(chains[chosen]) if has_parameters(part)]
    ends = [*starts[1:], len(chains[chosen])]
    return Chain(
        chosen,
        tuple(Block(part, kinds[part]) for part in chains[chosen]),
        tuple(np.diff([0, *ends]).tolist()),
    )


class _Comparison:
    """The runs of one chain."""

    def __init__(self, run: Runner, made_for: MadeFor, chain: Chain) -> None:
        self._run = run
        self._made_for = replace(made_for, modules={chain.path: made_for.modules[chain.path]})
        self._chain = chain

    def cuts(self, base: RunReport) -> Iterator[Cut]:
        """All segmentations, and what was seen of each."""
        yield self._seen(Cut("none", ()), base, base)
        count = len(self._chain.units)
        each = Cut(f"one each, {count}", self._chain.units)
        (of_each,) = self._runs([each])
        optimal = even_lengths(count, best_num_segments(count))
        if of_each.verdict is Verdict.FITS:
            optimal = least_peak.least_peak(self._costs(base, of_each))
        cuts = [
            replace(cut, lengths=self._chain.lengths(cut.lengths)) for cut in _cuts(count, optimal)
        ]
        for cut, of_cut in zip(cuts, self._runs(cuts), strict=True):
            yield self._seen(cut, of_cut, base)
        yield self._seen(each, of_each, base)

    def _costs(self, clean: RunReport, each: RunReport) -> least_peak.Chain:
        """What the units take, by a run in which nothing is checkpointed and one in which each unit
        is a segment.

        What a unit keeps in that one is its output, the next one's input; the first one's comes
        from outside, and is held in any case. What is outside, it tells as well: weights that
        autocast has cast are held there in all of forward, and count for no unit.
        """
        profile, checkpointed = self._profile(clean), self._profile(each)
        outputs = self._by_unit(checkpointed.kept_bytes)
        kept_bytes, rests = profile.kept_bytes, profile.rest_bytes
        own = [
            rests.get(Stretch("backward", place), int(size))
            for place, size in enumerate(kept_bytes)
        ]
        starts = np.cumsum([0, *self._chain.units[:-1]])
        before = np.cumsum(kept_bytes) - kept_bytes
        before -= np.repeat(before[starts], self._chain.units)
        outside = [
            rest
            for stretch, rest in checkpointed.rest_bytes.items()
            if checkpointed.live_blocks[stretch].all()
        ]
        return least_peak.Chain(
            np.concatenate([[0], outputs[:-1]]),
            self._by_unit(kept_bytes),
            np.maximum.reduceat(before + np.array(own), starts),
            max(outside, default=0) + int(outputs[-1]),
        )

    def _profile(self, report: RunReport) -> Profile:
        return read_profile(report.processes[0].record, self._chain.parts)

    def _by_unit(self, sizes: Int64Array) -> Int64Array:
        int64_array: Int64Array = np.add.reduceat(sizes, np.cumsum([0, *self._chain.units[:-1]]))
        return int64_array

    def _runs(self, cuts: Sequence[Cut]) -> list[RunReport]:
        return self._run([RunRequest(self._plan(cut)) for cut in cuts])

    def _plan(self, cut: Cut) -> Plan | None:
        if not cut.lengths:
            return None
        lengths = {"lengths": ",".join(map(str, cut.lengths))}
        settings = lengths | ({"spares_last": True} if cut.spares_last else {})
        return Plan(
            (Action(CHECKPOINT_SEGMENTS.name, (self._chain.path,), settings),), self._made_for
        )

    def _seen(self, cut: Cut, report: RunReport, base: RunReport) -> Cut:
        if report.verdict is not Verdict.FITS:
            return replace(cut, why_not=report.reason)
        if report.time is None or base.time is None:
            return replace(cut, why_not="no step ended")
        return replace(
            cut,
            plan=self._plan(cut),
            used_bytes=report.devices[0].peak_used_bytes,
            allocated_bytes=report.devices[0].totals.peak_allocated_bytes,
            recomputed=report.time.flops / max(base.time.flops, 1) - 1,
            step_s=report.time.step.s,
        )


def _cuts(count: int, optimal: tuple[int, ...]) -> Iterator[Cut]:
    """Even segments, and those with the least peak by the profile; their lengths in units."""
    root = best_num_segments(count)
    for number in sorted({2, root // 2, root, 2 * root} - {0, 1, count}):
        if number < count:
            name = f"{'square root' if number == root else 'uniform'}, {number}"
            yield Cut(name, even_lengths(count, number))
    name = f"optimal, {len(optimal)}"
    yield Cut(name, optimal)
    if len(optimal) > 1:
        yield Cut(f"{name}, last spared", optimal, spares_last=True)
