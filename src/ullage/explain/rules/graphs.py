"""Rules about graphs and tensors that outlive their step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ullage.explain.course import StepSource
from ullage.explain.growth import Growth, find_step_levels
from ullage.explain.phases import Phase
from ullage.explain.rules.case import Case, category_of
from ullage.explain.rules.rule import Found, Kind, Rule
from ullage.explain.spikes import birth_after
from ullage.trace.model import Category
from ullage.trace.replay import BoolArray
from ullage.trace.snapshot import Action, Int64Array
from ullage.units import format_bytes

# A graph saves tensors of many calls; what is kept of one call alone is a list of tensors.
_MIN_GRAPH_CALLS = 3
_LEAK_FRAC = 0.01
_MIN_SAWTOOTH_STEPS, _MIN_RISES, _MIN_DROPS, _DROP = 6, 3, 2, 2.5
_PASS_FRAC = 0.08


def _split_growth(case: Case) -> tuple[list[Growth], list[Growth], list[Growth]]:
    """What grows, as graphs, as tensors that grow in place, and as anything else."""
    graph, grown, others = [], [], []
    for growth in case.device.growth:
        newest = growth.blocks[-1] if growth.blocks else None
        category = None if newest is None else category_of(case, newest)
        if growth.is_replaced and category is Category.INPUT:  # batches that become larger
            continue
        if growth.is_replaced or category is Category.KV_CACHE:
            grown.append(growth)
        elif newest is not None and _is_of_graph(case, newest):
            graph.append(growth)
        else:
            others.append(growth)
    calls = {int(case.call[block]) for growth in graph for block in growth.blocks}
    if len(calls) < _MIN_GRAPH_CALLS:
        others, graph = others + graph, []
    return graph, grown, others


def _is_of_graph(case: Case, block: int) -> bool:
    if not case.is_known:
        return False
    is_saved = category_of(case, block) in (Category.ACTIVATION, Category.TEMPORARY)
    return bool(case.grad[block]) and is_saved


def _growth_found(
    case: Case, grown: list[Growth], what: str, left_bytes: int = 0, held: tuple[str, ...] = ()
) -> Iterator[Found]:
    """`left_bytes` are what the growth leaves behind in the allocator, `held` what is known of who
    holds it.
    """
    size = sum(growth.size_bytes for growth in grown)
    if not grown or not case.is_worth(size + left_bytes, _LEAK_FRAC):
        return
    blocks = np.array(sorted({block for growth in grown for block in growth.blocks}))
    first = grown[0]
    rate = sum(growth.bytes_per_step for growth in grown)
    evidence = (
        (
            f"{format_bytes(int(rate))} more after each step, from step {first.first_step} to "
            f"{first.last_step} ({case.device.course.source.value})"
        ),
        *case.list_sites(blocks),
        *(held or case.list_holders(blocks)),
    )
    # The last step's own blocks would be there in any case.
    last_end = case.device.course.step_ends[np.minimum(case.step, len(
        case.device.course.step_ends) - 1)]  # fmt: skip
    mask = np.zeros(len(case.size_bytes), dtype=np.bool_)
    sites = case.report.sites.of_stack[case.device.replay.blocks.stack]
    mask[np.isin(sites, [growth.site for growth in grown])] = True
    yield Found(
        what=what.format(size=format_bytes(size), rate=format_bytes(int(rate))),
        evidence=evidence,
        gain_bytes=max(case.gain(mask, last_end), 0) + left_bytes,
        blocks=blocks,
        is_guess=not case.is_known,
    )


def _find_kept_graph(case: Case) -> Iterator[Found]:
    graph, _, _ = _split_growth(case)
    if graph:
        what = "each step's graph is kept: {rate} a step, {size} by the end"
        yield from _growth_found(case, graph, what, held=_graph_holder(case))


def _graph_holder(case: Case) -> tuple[str, ...]:
    """The name of the tensor with the largest graph, where that was recorded."""
    recorded = case.device.recorded
    graph = None if recorded is None else recorded.holders.graph
    if graph is None:
        return ()
    return (f"held by {graph.chain}, a tensor with a graph of {graph.num_nodes:,} operations",)


def _find_piles(case: Case) -> Iterator[Found]:
    _, _, others = _split_growth(case)
    for growth in others:
        yield from _growth_found(
            case, [growth], "tensors of one line pile up: {rate} a step, {size} by the end"
        )


def _find_grown(case: Case) -> Iterator[Found]:
    _, grown, _ = _split_growth(case)
    # What each step leaves behind is too small for the next.
    sites = case.report.sites.of_stack[case.device.replay.blocks.stack]
    came = case.sum(np.isin(sites, [growth.site for growth in grown]))
    left = min(max(case.device.peak_reserved_bytes - case.peak_bytes, 0), came)
    yield from _growth_found(
        case, grown, "a cache is grown by concatenation: {rate} a step, {size} by the end", left
    )


def _growing_blocks(case: Case) -> Int64Array:
    return np.array([block for growth in case.device.growth for block in growth.blocks], dtype=int)


def _find_second_graph(case: Case) -> Iterator[Found]:
    """Activations of several passes are live at the peak."""
    if not case.is_known:
        return
    saved = case.is_of(Category.ACTIVATION) & case.grad
    saved[_growing_blocks(case)] = False
    sites = case.report.sites.of_stack[case.device.replay.blocks.stack]
    saved &= ~np.isin(sites, _irregular_sites(case))  # UL115 says more
    death = _next_pass(case)
    late = saved & (case.device.replay.blocks.death > death) & _comes_again(case, saved)
    peak = case.device.peak_event
    old = np.flatnonzero(late & case.is_live & (death <= peak))
    size, gain = int(case.size_bytes[old].sum()), case.gain(late, death)
    if not case.is_worth(size, _PASS_FRAC) or not case.is_worth(gain):
        return
    yield Found(
        what=f"activations of an earlier pass are live at the peak: {case.share(size)}",
        evidence=(
            (
                f"{len(old)} blocks are of passes before the one under way "
                f"({case.device.course.describe(peak)})"
            ),
            *case.list_sites(old),
        ),
        gain_bytes=gain,
        blocks=old,
    )


def _comes_again(case: Case, saved: BoolArray) -> BoolArray:
    """Which blocks have a twin, of the same line and size, in the next pass or the one after it:
    of parts of a model that are called one after the other each is needed.
    """
    blocks = case.device.replay.blocks
    numbers = np.flatnonzero(saved)
    site = case.report.sites.of_stack[blocks.stack[numbers]].tolist()
    passes = _pass_of(case, case.region[numbers]).tolist()
    keys = list(zip(site, blocks.size_bytes[numbers].tolist(), passes, strict=True))
    known = set(keys)
    found = np.zeros(len(saved), dtype=np.bool_)
    found[numbers] = [
        (one, size, number + 1) in known or (one, size, number + 2) in known
        for one, size, number in keys
    ]
    return found


def _pass_of(case: Case, region: Int64Array) -> Int64Array:
    """The number of the forward pass that a stretch belongs to, or follows."""
    begins = case.device.course.phase == Phase.FORWARD
    return np.cumsum(begins)[region]


def _next_pass(case: Case) -> Int64Array:
    """For each block the event at which the forward pass after its own begins."""
    course = case.device.course
    begins = np.flatnonzero(course.phase == Phase.FORWARD)
    starts = np.append(course.begin[begins], case.device.replay.num_events)
    number = _pass_of(case, case.region)
    return starts[np.minimum(number, len(starts) - 1)]


def _find_unused_graph(case: Case) -> Iterator[Found]:
    """Forward passes with gradients that no backward follows."""
    if not case.is_known:
        return
    course = case.device.course
    unused = _unused_passes(case)
    if not unused.any():
        return
    saved = case.is_of(Category.ACTIVATION) & case.grad & unused[_pass_of(case, case.region)]
    saved[_growing_blocks(case)] = False
    # Without a graph a tensor goes when the operation that reads it has made the next.
    death = birth_after(case.device.replay, 2)
    saved &= case.device.replay.blocks.death > death
    numbers = np.flatnonzero(saved)
    if not len(numbers):
        return
    each = np.bincount(_pass_of(case, case.region[numbers]), weights=case.size_bytes[numbers])
    size = int(each.max())
    gain = case.gain(saved, death)
    if not case.is_worth(size, _PASS_FRAC):
        return
    largest = numbers[_pass_of(case, case.region[numbers]) == int(each.argmax())]
    num_passes = int((course.phase == Phase.FORWARD).sum())
    has_backward = bool((course.phase == Phase.BACKWARD).any())
    yield Found(
        what=f"forward passes record a graph that nothing uses: {format_bytes(size)} in one pass",
        evidence=(
            (
                f"{int((each > 0).sum())} of {num_passes} passes with "
                f"gradients are not followed by a backward{'' if has_backward else ' (none is)'}"
            ),
            *case.list_sites(largest),
        ),
        gain_bytes=max(gain, 0),
        blocks=largest,
    )


def _unused_passes(case: Case) -> np.ndarray:
    """By the number of a forward pass: whether its activations are gone before any backward."""
    course, blocks = case.device.course, case.device.replay.blocks
    forward = np.flatnonzero(course.phase == Phase.FORWARD)
    result = np.zeros(len(forward) + 1, dtype=np.bool_)
    backwards = course.begin[course.phase == Phase.BACKWARD]
    failed = np.flatnonzero(case.report.snapshot.events_of(case.device.index).action == Action.OOM)
    cut = set(_pass_of(case, course.region_at(failed)).tolist())
    saved = case.is_of(Category.ACTIVATION) & case.grad
    of_pass = _pass_of(case, case.region)
    for number, region in enumerate(forward.tolist(), start=1):
        if not course.grad[region]:
            continue
        begin = course.begin[region]
        place = np.searchsorted(backwards, begin)
        # What is there when the trace ends may yet be used.
        following = np.append(backwards, case.device.replay.num_events - 1)[place]
        mine = saved & (of_pass == number)
        used = case.sum(mine & (blocks.death > following))
        result[number] = 2 * used < case.sum(mine) and number not in cut
    return result


def _find_irregular(case: Case) -> Iterator[Found]:
    """Sites whose blocks pile up over steps and go all at once, again and again."""
    course, sizes = case.device.course, case.device.step_levels.size_bytes[1:]
    sites = _irregular_sites(case)
    blocks = case.device.replay.blocks
    lasts = case.step < course.num_steps
    own = np.isin(case.report.sites.of_stack[blocks.stack], sites) & lasts & (blocks.birth >= 0)
    if not own.any():
        return
    death = course.step_ends[np.minimum(case.step, course.num_steps - 1)]
    gain = case.gain(own, death)
    if not case.is_worth(gain):
        return
    numbers, held = np.flatnonzero(own & case.is_live), sizes[:, sites].sum(axis=1)
    yield Found(
        what=f"blocks of several steps are freed together, late: {case.share(gain)}",
        evidence=(
            (
                f"at the ends of steps these lines hold {format_bytes(int(held.min()))} to "
                f"{format_bytes(int(held.max()))}, rising and falling"
            ),
            *case.list_sites(numbers),
        ),
        gain_bytes=gain,
        blocks=numbers,
        is_guess=not case.is_known,
    )


def _irregular_sites(case: Case) -> Int64Array:
    """The sites with more and more blocks over several steps, then suddenly fewer."""
    device, course = case.device, case.device.course
    if course.source is StepSource.STACKS or course.num_steps < _MIN_SAWTOOTH_STEPS:
        return np.empty(0, dtype=np.int64)
    levels = find_step_levels(device.replay, case.report.sites, course, is_recent=True)
    rises = np.diff(levels.num_blocks[1:], axis=0)
    typical = _typical(rises)
    # A list that is made once, such as the parts of what is then put together, goes once.
    is_drop = -rises >= np.maximum(_DROP * typical, 1)
    is_sawtooth = (is_drop.sum(axis=0) >= _MIN_DROPS) & ((rises > 0).sum(axis=0) >= _MIN_RISES)
    is_sawtooth[[growth.site for growth in device.growth]] = False
    return np.flatnonzero(is_sawtooth & (typical > 0))


def _typical(rises: Int64Array) -> np.ndarray:
    """The mean rise of each column, of those that rise."""
    up = np.maximum(rises, 0)
    mean: np.ndarray = up.sum(axis=0) / np.maximum((up > 0).sum(axis=0), 1)
    return mean


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
        code="UL113",
        title="the activations of an earlier pass are still live",
        kind=Kind.FAULT,
        meaning="A name such as `output` or `loss` keeps the last iteration's tensors while the "
        "next forward pass runs; or two losses are made before either backward.",
        evidence="At the peak activations of an earlier forward pass are live, whose lines ran "
        "again in the pass after it: 8 % of the peak or more.",
        cost="nothing",
        change="del output, loss at the end of an iteration (or put it into a function); call "
        "backward() on each loss before making the next",
        find=_find_second_graph,
    ),
    Rule(
        code="UL114",
        title="forward passes record a graph that nothing uses",
        kind=Kind.FAULT,
        meaning="Evaluation or inference without torch.no_grad(): every activation is kept until "
        "the output goes, for a backward that never comes.",
        evidence="Forward passes with gradients whose activations are gone before any backward.",
        cost="nothing; it is faster, too",
        change="put evaluation under torch.inference_mode() or torch.no_grad()",
        find=_find_unused_graph,
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
        "torch.utils.viz._cycles finds it",
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
