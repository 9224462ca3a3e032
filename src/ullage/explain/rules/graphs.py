"""Rules about graphs and tensors that outlive their step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

import numpy as np

from ullage.explain.moments.course import StepSource
from ullage.explain.moments.evaluations import Forward, find_rounds_of_marks
from ullage.explain.moments.growth import BOUNDED, Growth, find_site_levels
from ullage.explain.rules.case import MIN_FREE_BYTES, Case, category_of
from ullage.explain.rules.rule import Found, Kind, Rule, found_at
from ullage.explain.trial import Relief
from ullage.ground.units import format_bytes
from ullage.log.blocks import BoolArray
from ullage.log.growth import find_trend
from ullage.log.model import Category
from ullage.log.snapshot import Int64Array

# A graph saves tensors of many calls; what is kept of one call alone is a list of tensors.
_MIN_GRAPH_CALLS = 3
_LEAK_FRAC = 0.01
LEAKS = ("UL111", "UL112", "UL131")
"""The rules that name what grows."""
_MIN_SAWTOOTH_STEPS, _MIN_RISES, _MIN_DROPS, _DROP = 6, 3, 2, 2.5
# Of a single drop: as many rises, some of them after it.
_MIN_RISES_OF_ONE = 8


def _split_growth(case: Case) -> tuple[list[Growth], list[Growth], list[Growth]]:
    """Splits growth into graphs, tensors that grow in place, and anything else."""
    graph, grown, others = [], [], []
    rounds = find_rounds_of_marks(() if case.report.record is None else case.report.record.marks)
    trained = [round_.forwards for round_ in rounds if round_.has_backward]
    longer_inputs = {
        "step": _become_longer(trained),
        "forward pass": _become_longer([(call,) for call in rounds[-1].forwards]),
    }
    for growth in case.device.growth:
        newest = growth.blocks[-1] if growth.blocks else None
        category = None if newest is None else category_of(case, newest)
        is_cache = category is Category.KV_CACHE
        is_batch = category is Category.INPUT and growth.unit == "step"
        has_inputs = is_batch or longer_inputs.get(growth.unit, False)
        if growth.is_replaced and not is_cache and has_inputs:  # batches that become larger
            continue
        if case.is_known and category in BOUNDED:
            continue
        if growth.is_replaced or is_cache:
            grown.append(growth)
        elif (
            newest is not None
            and case.is_known
            and case.grad[newest]
            and category in (Category.ACTIVATION, Category.TEMPORARY)
        ):
            graph.append(growth)
        else:
            others.append(growth)
    calls = {int(case.call[block]) for growth in graph for block in growth.blocks}
    if len(calls) < _MIN_GRAPH_CALLS:
        others, graph = others + graph, []
    return graph, grown, others


def _become_longer(rounds: Iterable[Sequence[Forward]]) -> bool:
    """True if the inputs become larger from round to round, and with them what is made of them."""
    sizes = [sum(prod(shape) for call in calls for shape in call.inputs or ()) for calls in rounds]
    return find_trend(sizes) is not None


def _growth_found(
    case: Case, grown: list[Growth], what: str, left_bytes: int = 0, holders: tuple[str, ...] = ()
) -> Iterator[Found]:
    """The finding of growth from step to step.

    Args:
        left_bytes: the memory that the growth leaves behind as fragments.
        holders: who holds the blocks, if that is known.
    """
    size = sum(growth.size_bytes for growth in grown)
    if not grown or not case.is_worth(size + left_bytes, _LEAK_FRAC):
        return
    blocks = np.array(sorted({block for growth in grown for block in growth.blocks}))
    first = grown[0]
    rate = sum(growth.bytes_per_step for growth in grown)
    course = case.device.course
    how = course.source.value
    if first.unit != "step":
        num = course.num_steps
        how = f"after {num} steps" if num else "of a program without steps"
    evidence = (
        (
            f"{format_bytes(int(rate))} more after each {first.unit}, from {first.unit} "
            f"{first.first_step} to {first.last_step} ({how})"
        ),
        *case.list_sites(blocks),
        *(holders or case.list_holders(blocks)),
    )
    mask, last_end = _at_step_ends(case, grown)
    yield Found(
        what=what.format(size=format_bytes(size), rate=f"{format_bytes(int(rate))} a {first.unit}"),
        evidence=evidence,
        gain_bytes=max(case.gain(mask, last_end), 0) + left_bytes,
        blocks=blocks,
        is_guess=not case.is_known,
        relief=None if left_bytes else growth_relief(case, grown),
    )


def _at_step_ends(case: Case, grown: Sequence[Growth]) -> tuple[BoolArray, Int64Array]:
    """The blocks of the lines that grow, and the end of each block's round.

    The last round's own blocks would be there in any case.
    """
    blocks = case.device.replay.blocks
    sites = case.report.sites.of_stack[blocks.stack]
    mask, death = np.zeros(len(sites), dtype=np.bool_), blocks.death.copy()
    for growth in grown:
        own = np.flatnonzero(sites == growth.site)
        round_ = growth.ends.searchsorted(blocks.birth[own], side="right")
        mask[own] = True
        death[own] = growth.ends[np.minimum(round_, len(growth.ends) - 1)]
    return mask, death


def growth_relief(case: Case, grown: Sequence[Growth]) -> Relief:
    """Each round's blocks of the lines that grow go with it."""
    mask, ends = _at_step_ends(case, grown)
    is_old = case.device.replay.blocks.birth < ends
    return case.relief(mask & is_old, ends)


def _find_kept_graph(case: Case) -> Iterator[Found]:
    graph, _, _ = _split_growth(case)
    if graph:
        what = "each step's graph is kept: {rate}, {size} by the end"
        recorded = case.device.recorded
        largest = None if recorded is None else recorded.holders.graph
        holders = () if largest is None else (
            f"held by {largest.chain}, a tensor with a graph of {largest.num_nodes:,} operations",
        )  # fmt: skip
        yield from _growth_found(case, graph, what, holders=holders)


def _find_piles(case: Case) -> Iterator[Found]:
    _, _, others = _split_growth(case)
    for growth in others:
        yield from _growth_found(
            case, [growth], "tensors of one line pile up: {rate}, {size} by the end"
        )


def _find_grown(case: Case) -> Iterator[Found]:
    _, grown, _ = _split_growth(case)
    # What each step leaves behind is too small for the next.
    sites = case.report.sites.of_stack[case.device.replay.blocks.stack]
    came = case.sum(np.isin(sites, [growth.site for growth in grown]))
    left = min(case.device.peak_reserved_bytes - case.peak_bytes, came)
    left = left if left >= MIN_FREE_BYTES else 0
    yield from _growth_found(
        case, grown, "a cache is grown by concatenation: {rate}, {size} by the end", left
    )


def growing_blocks(case: Case) -> Int64Array:
    """The blocks that grow from step to step."""
    return np.array([block for growth in case.device.growth for block in growth.blocks], dtype=int)


def _find_irregular(case: Case) -> Iterator[Found]:
    """Sites whose blocks pile up over steps and go all at once, again and again."""
    course, sizes = case.device.course, case.device.site_levels.size_bytes[1:]
    sites = irregular_sites(case)
    blocks = case.device.replay.blocks
    lasts = case.step < course.num_steps
    own = np.isin(case.report.sites.of_stack[blocks.stack], sites) & lasts & (blocks.birth >= 0)
    if not own.any():
        return
    death = course.step_ends[np.minimum(case.step, course.num_steps - 1)]
    gain = case.gain(own, death)
    if not case.is_worth(gain):
        return
    numbers, live_bytes = np.flatnonzero(own & case.is_live), sizes[:, sites].sum(axis=1)
    what = f"blocks of several steps are freed together, late: {case.share(gain)}"
    ends = (
        f"at the ends of steps these lines hold {format_bytes(int(live_bytes.min()))} to "
        f"{format_bytes(int(live_bytes.max()))}, rising and falling"
    )
    relief, is_guess = case.relief(own, death), not case.is_known
    yield found_at(case, numbers, what, gain, relief, evidence=(ends,), is_guess=is_guess)


def irregular_sites(case: Case) -> Int64Array:
    """The sites with more and more blocks over several steps, then suddenly fewer."""
    device, course = case.device, case.device.course
    if course.source is StepSource.STACKS or course.num_steps < _MIN_SAWTOOTH_STEPS:
        return np.empty(0, dtype=np.int64)
    levels = find_site_levels(device.replay, case.report.sites, course, is_recent=True)
    rises = np.diff(levels.num_blocks[1:], axis=0)
    # The mean rise of each column, of those that rise.
    typical = np.maximum(rises, 0).sum(axis=0) / np.maximum((rises > 0).sum(axis=0), 1)
    # A list that is made once, such as the parts of what is then put together, goes once.
    is_drop = -rises >= np.maximum(_DROP * typical, 1)
    num_drops, num_rises = is_drop.sum(axis=0), (rises > 0).sum(axis=0)
    is_sawtooth = (num_drops >= _MIN_DROPS) & (num_rises >= _MIN_RISES)
    goes_on = (rises[-_MIN_RISES:] > 0).all(axis=0)
    is_sawtooth |= (num_drops == 1) & (num_rises >= _MIN_RISES_OF_ONE) & goes_on
    is_sawtooth[[growth.site for growth in device.growth]] = False
    return np.flatnonzero(is_sawtooth & (typical > 0))


RULES = (
    Rule(
        code="UL111",
        title="a loss or an output is kept with its graph",
        kind=Kind.FAULT,
        meaning="total += loss, losses.append(loss), history.append(output): a tensor that needs "
        "gradients holds every tensor that was saved to make it.",
        evidence="What forward passes with gradients saved, at two places in the code or more, is "
        "still there after each step, and more of it each time.",
        cost="nothing",
        change="keep numbers, not tensors: total += loss.item() (or loss.detach()); under "
        "torch.no_grad() where no gradient is needed",
        find=_find_kept_graph,
    ),
    Rule(
        code="UL112",
        title="tensors of one line pile up",
        kind=Kind.FAULT,
        meaning="A list of outputs, a cache without a limit, a dictionary that remembers every "
        "batch: what one line allocates is never freed.",
        evidence="Of one line more bytes are live after each step than after the one before.",
        cost="nothing, or the time to copy to the CPU what is really needed",
        change="drop what is not needed, or move it: outputs.append(output.cpu()); give a cache a "
        "limit",
        find=_find_piles,
    ),
    Rule(
        code="UL115",
        title="memory is freed late and at irregular times",
        kind=Kind.FAULT,
        meaning="Objects that refer to each other in a cycle are freed by Python's garbage "
        "collector alone, which counts objects and not bytes.",
        evidence="At the ends of steps some lines hold more and more, then suddenly little, and "
        "the peak would be lower had each step's blocks gone with it.",
        cost="nothing",
        change="break the cycle (weakref, del the attribute, no `self` in a hook's closure); "
        "torch.utils.viz._cycles finds it. A list that the program itself empties every few steps "
        "is not a cycle: empty it sooner, or keep it on the CPU",
        find=_find_irregular,
    ),
    Rule(
        code="UL131",
        title="a cache is grown by concatenation",
        kind=Kind.CHOICE,
        meaning="torch.cat makes a new tensor for each token: for a moment old and new are both "
        "there, and each time a free block of another size is left behind.",
        evidence="Of one line the live bytes grow from step to step, the number of blocks does "
        "not.",
        cost="a cache of fixed length takes its whole size at once",
        change='allocate the cache once (transformers: cache_implementation="static") and write '
        "into it",
        find=_find_grown,
    ),
)
