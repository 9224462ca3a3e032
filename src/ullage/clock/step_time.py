"""How long a step takes, and where its time goes: what the clock answers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from ullage.ground.protocol.plain import As, Mark, figure

_NUMBER = re.compile(r"\d+")


NO_MODULE = "(no module)"
"""Stands for the module of work that is done for none."""


class Interval(NamedTuple):
    """Seconds: the lower bound, the likely value, and the upper bound."""

    low_s: float
    s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class Share:
    """The share of a step that a kind of work, a part of the step, or a module takes.

    Attributes:
        name: of the kind ("matrix products"), the part ("forward", "backward", "optimizer",
            "other") or the module ("transformer.h.0"; empty: the outermost one).
        busy: the seconds that streams are busy with it.
            The bounds here and below are those of all costs at theirs.
        exposed: those of them that the step is made of: where several streams are busy, a moment
            belongs to computation before copies, and to copies before communication. With the
            seconds in which the device is idle, those of all kinds add up to the step.
        num: pieces of work.
    """

    name: str
    busy: Annotated[Interval, As("busy_s")]
    exposed: Annotated[Interval, As("exposed_s")]
    num: int


class Span(NamedTuple):
    """A piece of work on the timeline of the last step, by the likely times.

    Attributes:
        start_s: after the step's begin.
        duration_s: of the work.
        stream: a small number for each stream of the device; -1: the host waits.
        name: short and readable.
        category: of the work, as in `Category`.
        module: the name of the module; empty: the outermost one; NO_MODULE: none.
        part: "forward", "backward", "optimizer" or "other".
        position: how many events of the allocator came before: the place in the memory's timeline.
    """

    start_s: float
    duration_s: float
    stream: int
    name: str
    category: str
    module: str
    part: str
    position: int


@dataclass(frozen=True, slots=True)
class StepTime:
    """The time of the last step of a run, on one device.

    Attributes:
        step: of the last step, where errors of different sources are independent.
        steps: of each step that was kept, the last included.
        device_idle: within the step, no stream is busy: the host has not launched the next kernel
            yet, or waits for the device.
        host_waits: the host waits for the device.
        categories, parts, modules: shares of the step, most time first.
        unknown: kernels of which nothing is known, by name; their intervals are wide.
        flops: floating-point operations of the step that count for the utilisation.
        peak_flops_per_s: the rate that the maker states for the precision of most products; 0: none
            is stated.
        num_tokens: tokens of a step, where the shape of the batch tells; 0: it does not.
        num_samples: samples of a step; 0: not known.
        spans: the timeline of the step.
        basis: what the times rest on, and what is assumed.
        device: the index of the device that was timed; None: the one that the process used.
        extremes: of the last step, with all costs at their lower, and at their upper bounds;
            by them steps are compared. None: as `step`.
        corrections: of the basis, what measurements correct, and what they do not; empty: there are
            none.
    """

    step: Annotated[Interval, As("step_s")]
    steps: Annotated[tuple[Interval, ...], As("steps_s")]
    device_idle: Annotated[Interval, As("device_idle_s")]
    host_waits: Annotated[Interval, As("host_waits_s")]
    categories: Annotated[tuple[Share, ...], As("kinds")]
    parts: tuple[Share, ...]
    modules: tuple[Share, ...]
    unknown: tuple[Share, ...]
    flops: float
    peak_flops_per_s: Annotated[float, Mark.NULL]
    num_tokens: Annotated[int, As("tokens_per_step"), Mark.NULL]
    num_samples: Annotated[int, As("samples_per_step"), Mark.NULL]
    spans: Annotated[tuple[Span, ...], Mark.NO_KEY]
    basis: tuple[str, ...]
    device: Annotated[int | None, Mark.NO_KEY] = None
    extremes: Annotated[Interval | None, Mark.NO_KEY] = None
    corrections: Annotated[tuple[str, ...], Mark.NO_KEY] = ()

    @figure
    def extremes_s(self) -> Interval:
        """The step with all costs at their bounds."""
        return self.extremes or self.step

    @figure
    def utilisation(self) -> Interval | None:
        """Model FLOPs utilisation: the share of the stated rate that the step reaches."""
        if not self.flops or not self.peak_flops_per_s:
            return None
        shares = (self.flops / self.peak_flops_per_s / seconds for seconds in reversed(self.step))
        return Interval(*shares)

    @figure
    def tokens_per_s(self) -> Interval | None:
        """Tokens a second of this device; None: their number is not known."""
        return self._rate(self.num_tokens)

    @figure
    def samples_per_s(self) -> Interval | None:
        """Samples a second of this device; None: their number is not known."""
        return self._rate(self.num_samples)

    def seconds_by_module(self) -> Mapping[str, float]:
        """The likely seconds that each module adds to the step: its exposed ones, and those in
        which the device idles until its work is given. Their sum is the step.
        """
        seconds: defaultdict[str, float] = defaultdict(float)
        for share in self.modules:
            seconds[share.name] += share.exposed.s
        busy_until_s = waited_s = 0.0
        for span in self.spans:
            if span.stream >= 0:
                # Nothing ran until this: the host was still giving it, or waited before it did.
                idle_s = max(0.0, span.start_s - busy_until_s)
                seconds[span.module] += idle_s
                waited_s += idle_s
                busy_until_s = max(busy_until_s, span.start_s + span.duration_s)
        # After the last piece of work the device waits for the host to end the step.
        seconds[NO_MODULE] += max(0.0, self.device_idle.s - waited_s)
        return seconds

    def _rate(self, num: int) -> Interval | None:
        if not num or not self.step.low_s:
            return None
        return Interval(*(num / seconds for seconds in reversed(self.step)))

    @figure
    def critical(self) -> str:
        """The limit of the step: the kind of work with the most exposed time, or the host."""
        most = max(self.categories, key=lambda share: share.exposed.s, default=None)
        if most is None or self.device_idle.s > most.exposed.s:
            return "the host"
        return most.name


def merge_numbered(shares: Iterable[Share]) -> tuple[Share, ...]:
    """Merges shares whose names differ only in numbers, as those of equal layers do, most time
    first.
    """
    groups: dict[str, list[Share]] = {}
    for share in shares:
        groups.setdefault(_NUMBER.sub("*", share.name), []).append(share)
    merged = [
        group[0] if len(group) == 1 else _merge(name, group) for name, group in groups.items()
    ]
    return tuple(sorted(merged, key=lambda share: -share.exposed.s))


def _merge(name: str, shares: Sequence[Share]) -> Share:
    busy = Interval(*map(sum, zip(*(share.busy for share in shares), strict=True)))
    exposed = Interval(*map(sum, zip(*(share.exposed for share in shares), strict=True)))
    return Share(name, busy, exposed, sum(share.num for share in shares))
