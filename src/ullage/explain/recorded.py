"""The report of what was recorded on a real GPU: one file, or one of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from ullage.explain.program import Program
from ullage.explain.run import RunReport, explain_run
from ullage.facts.gpus.catalog import Gpu, find_gpu
from ullage.ground.errors import SpecError
from ullage.ground.units import format_bytes
from ullage.log.model import DeviceTotals, Record

_LIKE_ANY = "h100-80gb"  # for figures that no answer of a record depends on
_MIN_RANKS = 3
_ODD_SHARE = 0.02


def explain_recorded(
    records: Sequence[tuple[Record, str | None]], program: Program | None = None
) -> RunReport:
    """Explains records of one job, each with the path of its file; they must be one at least.

    program: as its parent saw it; None: as the first record says.
    """
    first = min((record for record, _ in records), key=lambda record: record.order(0))
    if program is None:
        program = Program(
            argv=first.argv,
            pid=first.pid,
            exit_code=max(record.exit.code for record, _ in records),
            wall_s=round(first.ended_s - first.started_s, 3),
        )
    remarks = [*program.remarks, *find_odd_ranks([record for record, _ in records])]
    return explain_run(
        records,
        program=replace(program, remarks=tuple(remarks)),
        torch=first.torch,
        gpu=_gpu_of(max(first.devices, key=lambda totals: totals.peak_reserved_bytes)),
        is_unlimited=False,
    )


def find_odd_ranks(records: Sequence[Record]) -> list[str]:
    """Sentences about the rank whose peak, or whose time of a step, is furthest from the others':
    by more than 2 % of their median, and further than all others together span. Of two ranks none
    is odd: where their peaks differ by more than 2 %, the larger is named.
    """
    ranked = sorted(
        (record for record in records if record.rank is not None),
        key=lambda record: record.rank or 0,
    )
    peaks = [_peak_bytes(record) for record in ranked]
    if len(ranked) < _MIN_RANKS:
        return _compare_two(*ranked) if len(ranked) == _MIN_RANKS - 1 else []
    sentences = []
    odd = _find_odd(peaks)
    if odd is not None:
        others = [peak for number, peak in enumerate(peaks) if number != odd]
        ends = dict.fromkeys((min(others), max(others)))
        sentences.append(
            f"rank {ranked[odd].rank} is odd: its peak is {format_bytes(peaks[odd])} allocated, "
            f"the other ranks' {' to '.join(map(format_bytes, ends))}"
        )
    times = [_step_seconds(record) for record in ranked]
    slow = _find_odd(times) if all(times) else None
    if slow is not None:
        rest = median(time for number, time in enumerate(times) if number != slow)
        sentences.append(
            f"rank {ranked[slow].rank} is odd: a step takes {times[slow]:.3g} s, {rest:.3g} s on "
            "the other ranks"
        )
    return sentences


def _compare_two(one_record: Record, other: Record) -> list[str]:
    """A sentence where the peak of one of two ranks is clearly higher; which of them is odd cannot
    be known.
    """
    high, low = sorted((one_record, other), key=_peak_bytes, reverse=True)
    high_bytes, low_bytes = _peak_bytes(high), _peak_bytes(low)
    if high_bytes - low_bytes <= _ODD_SHARE * high_bytes:
        return []
    peaks = f"{format_bytes(high_bytes)} allocated, {format_bytes(low_bytes)} on rank {low.rank}"
    return [f"rank {high.rank} needs more than rank {low.rank}: its peak is {peaks}"]


def _find_odd(values: Sequence[float]) -> int | None:
    """The value that is further from the median of the others than they are from one another."""
    middle = median(values)
    odd = max(range(len(values)), key=lambda number: abs(values[number] - middle))
    others = [value for number, value in enumerate(values) if number != odd]
    distance = min(abs(values[odd] - other) for other in others)
    spread = max(others) - min(others)
    is_odd = distance > spread and distance > _ODD_SHARE * median(others)
    return odd if is_odd else None


def _peak_bytes(record: Record) -> int:
    return max((totals.peak_allocated_bytes for totals in record.devices), default=0)


def _step_seconds(record: Record) -> float:
    """The middle time of a step; 0 where there are none. The first is left out: it warms up."""
    if record.measured is None:
        return 0.0
    rows = record.measured.step_peaks[1:]
    return median(row.seconds / row.num_steps for row in rows) if rows else 0.0


def _gpu_of(totals: DeviceTotals) -> Gpu:
    """The GPU as in the catalogue, with the memory and the context that were measured."""
    try:
        known = find_gpu(totals.name)
    except SpecError:
        known = replace(find_gpu(_LIKE_ANY), slug=totals.name, name=totals.name)
    size, context = totals.total_bytes, totals.context_bytes
    return replace(
        known,
        total_bytes=size,
        total_low_bytes=size,
        total_high_bytes=size,
        is_total_exact=True,
        context_low_bytes=context,
        context_bytes=context,
        context_high_bytes=context,
    )
