"""The causes of a difference in memory between two runs, from their findings, block sizes and block
counts, the most conclusive evidence first.

A finding in only one run names a fault. Otherwise the sizes show the cause: parameters that are all
twice as large indicate another precision, different parameters another model. The same number of
activations, each twice as large, indicates another batch or sequence length.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ullage.explain.compare.changes import LINE, SAME_FACTOR, Change, Moment, describe_factor
from ullage.explain.compare.differences import CHECKPOINTING, OPTIMIZER, Difference
from ullage.explain.owners.ownership import code_of
from ullage.explain.owners.sites import UNKNOWN_SITE
from ullage.explain.rules.rule import Finding, Kind
from ullage.ground.protocol.plain import As, Mark
from ullage.ground.units import KIB, format_bytes
from ullage.log.model import Category, Int64Array, Record

# Changes smaller than this share of the larger peak are not reported as a cause.
MIN_SHARE = 0.005
# A finding in both runs is a cause if its gain differs by at least this factor.
_MUCH_MORE = 1.5
# At least this share of the memory allocated by the passes must have grown by one factor.
_SCALED_SHARE = 0.5
# With a longer sequence some blocks grow quadratically; smaller shares may be chance.
_SQUARE_SHARE = 0.01
# Growth by f is also quadratic growth by sqrt(f); this weight prefers f, the simpler reason.
_SQUARE_WEIGHT = 0.9
# The ratio of optimizer states to parameters differs by at least this between optimizers.
_OTHER_STATES = 0.1
# Parameters below this size are rounded up, so their size does not show their precision.
_ROUNDED_BYTES = 64 * KIB
# No block is as large as 4 TiB, so a site and a size fit into one integer sort key.
_SIZE_BITS = 42
_NOT_SAID = ("none", "False", "0.0")
# The options whose names are not those of the fields of a recipe.
_OPTIONS = {
    "compiled": "compile", "layout sequence": "sequence-parallel",
    "layout context": "context-parallel", "layout expert": "expert-parallel", "lora rank": "lora",
    "lora is_quantized": "quantize",
}  # fmt: skip
_PRECISIONS = (0.25, 0.5, 2.0, 4.0)
_SCALES = (Category.ACTIVATION, Category.INPUT, Category.TEMPORARY, Category.KV_CACHE,
           Category.UNATTRIBUTED)  # fmt: skip


class CauseKind(enum.Enum):
    """The kinds of causes, in the order in which they are reported."""

    RECIPE = "recipe"
    FAULT = "fault"
    PRECISION = "precision"
    MODEL = "model"
    OPTIMIZER = "optimizer"
    CHECKPOINTING = "checkpointing"
    SCALE = "scale"
    CHOICE = "choice"
    OUTSIDE = "outside"
    PLACE = "place"


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason for a change.

    Attributes:
        text: a description for people.
        changed_bytes: the change in bytes that the cause explains; 0 where it is not known.
        code: the code of the rule that supports it, such as UL111; empty where there is none.
    """

    kind: CauseKind
    text: str
    changed_bytes: int = 0
    code: Annotated[str, As("rule"), Mark.NULL] = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence for causes: both runs at their peaks, and their known properties.

    Attributes:
        before, after: the peaks.
        at_end: the end of the last step of each run, or else the peak: the parameters and optimizer
            states are live there, whatever the peak consists of.
        findings: the findings of the rules in each run.
        sites: the sites that changed at the peak, the largest change first.
        differences: the recorded differences between the two runs.
        early: the side that ended before its first step had, up to where both are compared.
    """

    before: Moment
    after: Moment
    at_end: tuple[Moment, Moment]
    findings: tuple[Sequence[Finding], Sequence[Finding]]
    sites: Sequence[Change]
    differences: Sequence[Difference]
    early: int | None = None

    @property
    def peak_bytes(self) -> int:
        """The larger of the two peaks."""
        return max(moment.device.peak_allocated_bytes for moment in (self.before, self.after))


def find_causes(evidence: Evidence) -> tuple[Cause, ...]:
    """Returns the causes of the change, sorted by kind and then by size, the largest first. The
    sites themselves come last.
    """
    causes = [*_compare_findings(evidence), *_compare_outside(evidence)]
    recipes = [*_compare_recipes(evidence)]
    causes += recipes
    if not recipes:  # else sizes are what these say
        resized = [*_compare_parameters(evidence)]
        causes += resized
        causes += _compare_optimizers(evidence)
        causes += _compare_checkpointing(evidence)
        # A model of another size or precision also allocates different activations.
        if evidence.sites and not resized:
            causes += _find_scale(evidence)
    order = list(CauseKind)
    causes.sort(key=lambda cause: (order.index(cause.kind), -abs(cause.changed_bytes)))
    return (*causes, *_name_places(evidence))


def _compare_recipes(evidence: Evidence) -> Iterator[Cause]:
    """Yields what two estimates were asked for, where it differs."""
    records = [moment.report.record for moment in (evidence.before, evidence.after)]
    before, after = ({} if record is None else _options_of(record) for record in records)
    if not before or not after:
        return
    changes = [
        f"{name} {before.get(name, 'none')} to {after.get(name, 'none')}"
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    ]
    if changes:
        sizes = [moment.device.peak_allocated_bytes for moment in (evidence.before, evidence.after)]
        text = f"another recipe: {', '.join(changes)}"
        yield Cause(CauseKind.RECIPE, text, sizes[1] - sizes[0])


def _options_of(record: Record) -> dict[str, str]:
    """The options of a recipe, by those of `ullage estimate` and as they are typed."""
    fields = dict(record.recipe)
    has_double_scales = fields.pop("lora has_double_scales", "") == "True"
    if fields.get("lora is_quantized") == "True":
        fields["lora is_quantized"] = "nf4-dq" if has_double_scales else "nf4"
    return {
        _OPTIONS.get(name, re.sub("[ _]", "-", name.removeprefix("layout "))): (
            "on" if value == "True" else re.sub(r"[()' ]", "", value)
        )
        for name, value in fields.items()
        if value not in _NOT_SAID
    }


def _compare_findings(evidence: Evidence) -> Iterator[Cause]:
    """Yields findings that are in only one run, or whose gain is much larger in one run."""
    sides = [_by_code(findings, moment.device.index) for findings, moment in
             zip(evidence.findings, (evidence.before, evidence.after), strict=True)]  # fmt: skip
    for code in dict.fromkeys(chain(sides[1], sides[0])):
        before, after = (side.get(code) for side in sides)
        finding = after if after is not None else before
        if finding is None or not _has_changed(finding, before, after, evidence):
            continue
        # What a request that failed was short of is no part of either peak.
        gains = [
            0 if each is None or each.is_fatal else each.gain_bytes for each in (before, after)
        ]
        changed = gains[1] - gains[0]
        is_both = before is not None and after is not None
        is_little = abs(changed) < MIN_SHARE * evidence.peak_bytes
        if is_both and (is_little or max(gains) < _MUCH_MORE * min(gains)):
            continue
        which = "in both, " if is_both else "" if after is not None else "no longer "
        kind = CauseKind.FAULT if finding.rule.kind is Kind.FAULT else CauseKind.CHOICE
        yield Cause(kind, f"{which}{code}: {finding.what}", changed, code)


def _has_changed(
    finding: Finding, before: Finding | None, after: Finding | None, evidence: Evidence
) -> bool:
    """Returns whether what a finding is about differs between the runs: that it is only in the run
    that went on is not a change, nor that states of the same size are a larger share of the peak.
    """
    if evidence.early is not None and (before, after)[evidence.early] is None:
        return False
    if (before and after) or finding.rule.kind is Kind.FAULT or finding.blocks is None:
        return True
    moment = evidence.before if after is None else evidence.after
    codes = set(moment.device.owners.category[finding.blocks].tolist())
    if codes != {code_of(Category.OPTIMIZER_STATE)}:
        return True
    sizes = [_total(_sizes(each, Category.OPTIMIZER_STATE)) for each in evidence.at_end]
    return abs(sizes[1] - sizes[0]) >= MIN_SHARE * evidence.peak_bytes


def _by_code(findings: Sequence[Finding], device: int) -> dict[str, Finding]:
    """Returns the largest finding of each rule on a device. A rule that speaks only where nothing
    else is found is left out: that it comes or goes is not a change of its own.
    """
    findings_by_rule: dict[str, Finding] = {}
    for finding in findings:
        if finding.rule.is_last:
            continue
        known = findings_by_rule.get(finding.rule.code)
        if finding.device == device and (known is None or finding.gain_bytes > known.gain_bytes):
            findings_by_rule[finding.rule.code] = finding
    return findings_by_rule


def _sizes(moment: Moment, category: Category) -> Counter[int]:
    blocks = moment.device.replay.blocks
    mine = blocks.is_live(moment.event) & (moment.device.owners.category == code_of(category))
    return Counter(blocks.requested_bytes[mine].tolist())


def _total(sizes: Mapping[int, int]) -> int:
    return sum(size * count for size, count in sizes.items())


def _compare_parameters(evidence: Evidence) -> Iterator[Cause]:
    before, after = (_sizes(moment, Category.PARAMETER) for moment in evidence.at_end)
    changed = _total(after) - _total(before)
    is_known = all(moment.device.owners.is_known for moment in evidence.at_end)
    if not before or not after or abs(changed) < MIN_SHARE * evidence.peak_bytes:
        return
    sizes = f"{format_bytes(_total(before))} to {format_bytes(_total(after))}"
    factor = _total(after) / _total(before)
    is_resized = any(abs(factor - ratio) <= SAME_FACTOR * ratio for ratio in _PRECISIONS)
    copies = round(after.total() / before.total())
    if is_resized and before.total() == after.total() and _has_one_factor(before, after, factor):
        how = describe_factor(_total(before), _total(after))
        text = f"as many parameters, {how} the bytes each: another precision ({sizes})"
        yield Cause(CauseKind.PRECISION, text, changed)
    elif is_known and after == Counter({size: copies * num for size, num in before.items()}):
        text = f"the parameters are there {copies} times, and were once ({sizes})"
        yield Cause(CauseKind.MODEL, text, changed)
    elif is_known:
        how = describe_factor(_total(before), _total(after))
        what = (
            f"the same {after.total()} parameters, {how} as large"
            if before.total() == after.total()
            else f"{before.total()} to {after.total()} parameters"
        )
        text = f"another model: {what} ({sizes})"
        yield Cause(CauseKind.MODEL, text, changed)


def _has_one_factor(before: Counter[int], after: Counter[int], factor: float) -> bool:
    """Returns whether every block of one run is a block of the other, scaled by one factor."""
    pairs = zip(sorted(before.elements()), sorted(after.elements()), strict=True)
    return all(
        abs(new - factor * old) <= SAME_FACTOR * new
        for old, new in pairs
        if min(old, new) >= _ROUNDED_BYTES
    )


def _compare_optimizers(evidence: Evidence) -> Iterator[Cause]:
    """Yields another optimizer as a cause, by its states' size; its functions give the name."""
    states, parameters = (
        [_total(_sizes(moment, category)) for moment in evidence.at_end]
        for category in (Category.OPTIMIZER_STATE, Category.PARAMETER)
    )
    change = next(
        (difference for difference in evidence.differences if difference.name == OPTIMIZER), None
    )
    changed = states[1] - states[0]
    # A program that ran out of memory before it had states would have had some optimizer.
    is_short = any(
        moment.device.shortage is not None and not state
        for moment, state in zip(evidence.at_end, states, strict=True)
    )
    if evidence.early is not None or is_short or not all(parameters):
        return
    if abs(changed) < MIN_SHARE * evidence.peak_bytes:
        return
    shares = [state / size for state, size in zip(states, parameters, strict=True)]
    if abs(shares[1] - shares[0]) < _OTHER_STATES:
        return
    which = f" ({change.before or 'none'} to {change.after or 'none'})" if change else ""
    text = (
        f"another optimizer{which}: its states are {shares[1]:.2g} times the parameters, and were "
        f"{shares[0]:.2g} times"
    )
    yield Cause(CauseKind.OPTIMIZER, text, changed)


def _compare_checkpointing(evidence: Evidence) -> Iterator[Cause]:
    """Yields activation checkpointing as a cause, by the allocating functions."""
    change = next(
        (difference for difference in evidence.differences if difference.name == CHECKPOINTING),
        None,
    )
    if change is None:
        return
    sizes = [_total(_sizes(moment, Category.ACTIVATION))
             for moment in (evidence.before, evidence.after)]  # fmt: skip
    what = "on" if change.after == "on" else "off"
    changed = sizes[1] - sizes[0]
    if abs(changed) >= MIN_SHARE * evidence.peak_bytes and (changed < 0) == (what == "on"):
        text = f"activation checkpointing was turned {what}; it was {change.before}"
        yield Cause(CauseKind.CHECKPOINTING, text, changed)


def _compare_outside(evidence: Evidence) -> Iterator[Cause]:
    """Yields what took another size of the device outside PyTorch's allocator."""
    moments = evidence.before, evidence.after
    totals = [moment.device.totals for moment in moments]
    records = [moment.report.record for moment in moments]
    is_measured = {record is not None and record.measured is not None for record in records}
    # A prediction and what was measured are compared term by term.
    if totals[0] is None or totals[1] is None or len(is_measured) > 1:
        return
    sides = [{size.what: size for size in each.outside} for each in totals if each is not None]
    total = 0
    for what in dict.fromkeys((*sides[0], *sides[1])):
        pair = [side.get(what) for side in sides]
        sizes = [0 if each is None else each.likely_bytes for each in pair]
        counts = [0 if each is None else each.count for each in pair]
        changed = sizes[1] - sizes[0]
        total += changed
        if abs(changed) >= MIN_SHARE * evidence.peak_bytes:
            how = f": {counts[0]} to {counts[1]}" if counts[0] != counts[1] else ""
            yield Cause(CauseKind.OUTSIDE, f"{what}, outside PyTorch{how}", changed)
    rest = totals[1].all_outside_bytes - totals[0].all_outside_bytes - total
    if abs(rest) >= MIN_SHARE * evidence.peak_bytes:
        yield Cause(CauseKind.OUTSIDE, "context and libraries, outside PyTorch", rest)


def _find_scale(evidence: Evidence) -> Iterator[Cause]:
    """Yields a scale as a cause: most of the memory that the passes allocate grew by one factor, in
    as many blocks as before.

    All allocations of the traces are compared: the blocks live at the two peaks may belong to
    different moments.
    """
    moments = evidence.before, evidence.after
    inputs = [_total(_sizes(moment, Category.INPUT)) for moment in moments]
    is_known = all(moment.device.owners.is_known for moment in moments)
    is_recomputed = any(difference.name == CHECKPOINTING for difference in evidence.differences)
    # Batch and sequence make the inputs larger, too; a recomputation does not.
    if (is_known and all(inputs) and inputs[0] == inputs[1]) or (is_recomputed and not all(inputs)):
        return
    before, after = (_count_sizes(moment) for moment in moments)
    places = before.keys() & after.keys()
    everything = max(sum(sizes.size_bytes for sizes in side.values()) for side in (before, after))

    def share_of(factor: float) -> tuple[float, float]:
        sizeses = [_match_sizes(before[place], after[place], factor) for place in places]
        return sum(share for share, _ in sizeses) / everything, sum(
            two for _, two in sizeses
        ) / everything

    ratios = {after[place].size_bytes / before[place].size_bytes for place in places}
    ratios = {
        round(ratio, 2) if ratio > 1 else 1 / round(1 / ratio, 2) for ratio in ratios if ratio
    }
    # With a longer sequence some blocks grow quadratically: the root of the ratio is the factor.
    ratios |= {ratio**0.5 for ratio in ratios}
    factors = sorted(ratio for ratio in ratios if abs(ratio - 1) > SAME_FACTOR and ratio > 0)
    shares = {factor: share_of(factor) for factor in factors}
    best = max(
        shares, key=lambda key: shares[key][0] + _SQUARE_WEIGHT * shares[key][1], default=None
    )
    if best is None or sum(shares[best]) < _SCALED_SHARE:
        return
    what = "sequence length" if shares[best][1] > _SQUARE_SHARE else "batch or sequence length"
    text = (
        f"another {what}, {describe_factor(10**6, round(10**6 * best))} as large: "
        f"{100 * sum(shares[best]):.0f} % of what the passes allocate grew like it"
    )
    changed = sum(site.changed_bytes for site in evidence.sites if site.category in _SCALES)
    yield Cause(CauseKind.SCALE, text, changed)


class _Sizes(NamedTuple):
    """The allocations of a site: distinct sizes, ascending, and the count of each per step."""

    sizes: Int64Array
    counts: NDArray[np.float64]

    @property
    def size_bytes(self) -> float:
        return float((self.sizes * self.counts).sum())


def _match_sizes(before: _Sizes, after: _Sizes, factor: float) -> tuple[float, float]:
    """Returns how many bytes of the larger side match blocks of the smaller side scaled by a
    factor, and how many of the remaining bytes match with the factor squared.
    """
    if factor < 1:
        before, after, factor = after, before, 1 / factor
    left, free = before.counts.copy(), after.counts.copy()
    # A block that did not grow must not match as one that grew slightly.
    accuracy = min(SAME_FACTOR, (factor - 1) / 2)
    matched = []
    for power in (factor, factor**2):
        targets = before.sizes * power
        near = np.searchsorted(after.sizes, targets * (1 - accuracy))
        near = np.minimum(near, len(after.sizes) - 1)
        is_there = np.abs(after.sizes[near] - targets) <= accuracy * targets
        counts = np.where(is_there, np.minimum(left, free[near]), 0.0)
        left -= counts
        np.subtract.at(free, near, counts)
        free = np.maximum(free, 0.0)  # two sizes may match the same block
        matched.append(float((after.sizes[near] * counts).sum()))
    return matched[0], matched[1]


def _count_sizes(moment: Moment) -> dict[str, _Sizes]:
    device, names = moment.device, moment.report.sites.names
    blocks, num_steps = device.replay.blocks, max(device.course.num_steps, 1)
    if moment.last is not None:
        num_steps = 1
    mine = np.isin(device.owners.category, [code_of(category) for category in _SCALES]) & (
        blocks.birth >= 0
    )
    mine &= blocks.birth <= (device.replay.num_events if moment.last is None else moment.last)
    mine &= (blocks.requested_bytes > 0) & (blocks.requested_bytes < 1 << _SIZE_BITS)
    numbers: dict[str, int] = {}
    places = np.array([numbers.setdefault(LINE.sub(r"\2", name), len(numbers)) for name in names])
    place = places[moment.report.sites.of_stack[blocks.stack[mine]]]
    keys, counts = np.unique(place << _SIZE_BITS | blocks.requested_bytes[mine], return_counts=True)
    place, sizes = keys >> _SIZE_BITS, keys & ((1 << _SIZE_BITS) - 1)
    begins = np.searchsorted(place, np.arange(len(numbers) + 1))
    return {
        name: _Sizes(sizes[begin:end], counts[begin:end] / num_steps)
        for name, begin, end in zip(numbers, begins[:-1], begins[1:], strict=True)
        if begin < end
    }


def _name_places(evidence: Evidence) -> Iterator[Cause]:
    """Yields the sites themselves whose change is large enough."""
    for site in evidence.sites:
        if abs(site.changed_bytes) >= MIN_SHARE * evidence.peak_bytes:
            owner = site.category.value.replace("_", " ") if site.category else "blocks"
            where = "without a Python stack" if site.name == UNKNOWN_SITE else f"at {site.name}"
            text = f"{owner} {where} ({site.looks_like})"
            yield Cause(CauseKind.PLACE, text, site.changed_bytes)
