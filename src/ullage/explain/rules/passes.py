"""Rules about forward passes: what one leaves behind for another, and what none needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ullage.explain.moments.course import Course, Phase
from ullage.explain.moments.evaluations import find_rounds_of_marks
from ullage.explain.moments.spikes import birth_after
from ullage.explain.rules.case import Case
from ullage.explain.rules.graphs import growing_blocks, irregular_sites
from ullage.explain.rules.rule import Found, Kind, Rule, found_at
from ullage.ground.units import KIB, format_bytes
from ullage.log.blocks import BoolArray
from ullage.log.model import Category
from ullage.log.snapshot import Action, Int64Array

_PASS_FRAC = 0.08
# A loss is a number. What is larger is an output that a later loss may still need.
_MAX_LOSS_BYTES = KIB
# Of more passes before one backward each may be a time step that the next one goes on from.
_MAX_PASSES = 4
# The lines of a pass are many; a layer that is repeated has few.
_MIN_CALLS = 4


def _find_second_graph(case: Case) -> Iterator[Found]:
    if not case.is_known:
        yield from _guess_second_graph(case)
        return
    saved = case.is_of(Category.ACTIVATION) & case.grad
    saved[growing_blocks(case)] = False
    sites = case.report.sites.of_stack[case.device.replay.blocks.stack]
    saved &= ~np.isin(sites, irregular_sites(case))  # UL115 says more
    death = _next_pass(case)
    late = saved & (case.device.replay.blocks.death > death) & _comes_again(case, saved)
    late &= _is_separate(case)[_pass_of(case, case.region)]
    peak = case.device.peak_event
    old = np.flatnonzero(late & case.is_live & (death <= peak))
    which = f"before the one under way ({case.device.course.describe(peak)})"
    yield from _found_earlier(case, old, late, death, which)


def _guess_second_graph(case: Case) -> Iterator[Found]:
    """The same by stacks alone."""
    starts = _guess_passes(case)
    if not len(starts):
        return
    blocks = case.device.replay.blocks
    saved = case.is_of(Category.ACTIVATION) & (blocks.birth >= 0)
    of_pass = np.searchsorted(starts, blocks.birth, side="right")
    twins = _find_twins(case, saved, of_pass)
    death = np.append(starts, case.device.replay.num_events)[np.minimum(of_pass, len(starts))]
    late = saved & (of_pass > 0) & (blocks.death > death)
    which = "before that under way: their lines run again in the next, with the same sizes"
    yield from _found_earlier(case, twins, late, death, which, is_guess=True)


def _found_earlier(
    case: Case,
    old: Int64Array,
    late: BoolArray,
    death: Int64Array,
    which: str,
    *,
    is_guess: bool = False,
) -> Iterator[Found]:
    """The live blocks of earlier passes, and what the peak is without those that are `late`."""
    size, gain = int(case.size_bytes[old].sum()), case.gain(late, death)
    if case.is_worth(size, _PASS_FRAC) and case.is_worth(gain):
        what = f"activations of an earlier pass are live at the peak: {case.share(size)}"
        evidence, relief = (f"{len(old)} blocks are of passes {which}",), case.relief(late, death)
        yield found_at(case, old, what, gain, relief, evidence=evidence, is_guess=is_guess)


def _guess_passes(case: Case) -> Int64Array:
    """The events at which passes begin: those at which the first of the activations that are live
    at the peak was made, and others by the same line with the same size.
    """
    blocks = case.device.replay.blocks
    saved = case.is_of(Category.ACTIVATION) & (blocks.birth >= 0)
    live = np.flatnonzero(saved & case.is_live)
    if not len(live):
        return np.empty(0, dtype=np.int64)
    first = live[blocks.birth[live].argmin()]
    is_first = saved & (case.call == case.call[first])
    is_first &= case.size_bytes == case.size_bytes[first]
    starts: Int64Array = blocks.birth[is_first]  # ascending
    return starts


def _find_twins(case: Case, saved: BoolArray, of_pass: Int64Array) -> Int64Array:
    """The activations of earlier passes that are live at the peak and come again in the next one;
    none where these are layers of one pass, which are many, or have few lines.
    """
    live = np.flatnonzero(saved & case.is_live)
    old = live[of_pass[live] < of_pass[live].max()]
    passes = np.unique(of_pass[old])
    none = np.empty(0, dtype=np.int64)
    if not len(passes) or len(passes) >= _MAX_PASSES:
        return none
    num_calls = [len(np.unique(case.call[old[of_pass[old] == number]])) for number in passes]
    if min(num_calls) < _MIN_CALLS:
        return none
    columns = (case.call.tolist(), case.size_bytes.tolist(), of_pass.tolist())
    known = {tuple(column[number] for column in columns) for number in np.flatnonzero(saved)}
    call, size, number_of = columns
    twins = [n for n in old.tolist() if (call[n], size[n], number_of[n] + 1) in known]
    return np.array(twins, dtype=np.int64) if 2 * len(twins) >= len(old) else none


def _is_separate(case: Case) -> BoolArray:
    """By the number of a forward pass: whether the next one does without what it saved.

    It does where its own backward came between the two, which frees of that, or where a loss
    was made of this one alone. A contrastive loss needs the outputs of both, a recurrent network
    goes on from the last, and in a pipeline the backward of an earlier micro-batch comes between.
    """
    course, blocks = case.device.course, case.device.replay.blocks
    forward = course.begin[course.phase == Phase.FORWARD]
    backward = course.begin[course.phase == Phase.BACKWARD]
    is_loss = case.born_in(Phase.LOSS) & (blocks.requested_bytes <= _MAX_LOSS_BYTES)
    is_saved = case.is_of(Category.ACTIVATION) & case.grad
    of_pass = _pass_of(case, case.region)
    result = np.zeros(len(forward) + 1, dtype=np.bool_)
    before = np.searchsorted(backward, forward)
    for number in range(1, len(forward)):
        if before[number] > before[number - 1]:
            mine = is_saved & (of_pass == number)
            is_freed = (blocks.death > backward[before[number - 1]]) & (
                blocks.death <= forward[number]
            )
            result[number] = case.sum(mine & is_freed) >= _PASS_FRAC * case.sum(mine)
            continue
        loss = is_loss & (of_pass == number) & (blocks.death > forward[number])
        num_passes = int((before == before[number]).sum())
        result[number] = bool(loss.any()) and num_passes <= _MAX_PASSES
    return result


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
    is_repeated = np.zeros(len(saved), dtype=np.bool_)
    is_repeated[numbers] = [
        (key, size, number + 1) in known or (key, size, number + 2) in known
        for key, size, number in keys
    ]
    return is_repeated


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
    if not case.is_known:
        return
    course = case.device.course
    unused = _unused_passes(case)
    if not unused.any():
        return
    saved = case.is_of(Category.ACTIVATION) & case.grad & unused[_pass_of(case, case.region)]
    saved[growing_blocks(case)] = False
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
    what = f"forward passes record a graph that nothing uses: {format_bytes(size)} in one pass"
    which = (
        f"{int((each > 0).sum())} of {num_passes} passes with gradients are not followed by a "
        f"backward{'' if has_backward else ' (none is)'}"
    )
    relief = case.relief(saved, death)
    yield found_at(case, largest, what, max(gain, 0), relief, evidence=(which,))


def _unused_passes(case: Case) -> np.ndarray:
    """By the number of a forward pass: whether no backward is of it.

    A backward right after it is: little of it may be live then, as `linear(x).mean()` needs of the
    forward pass x alone.
    """
    course, blocks = case.device.course, case.device.replay.blocks
    forward = np.flatnonzero(course.phase == Phase.FORWARD)
    result = np.zeros(len(forward) + 1, dtype=np.bool_)
    backwards = course.begin[course.phase == Phase.BACKWARD]
    failed = np.flatnonzero(case.report.snapshot.events_of(case.device.index).action == Action.OOM)
    cut = set(_pass_of(case, course.region_at(failed)).tolist())
    saved = case.is_of(Category.ACTIVATION) & case.grad
    of_pass = _pass_of(case, case.region)
    is_link = _links(case)
    for number, region in enumerate(forward.tolist(), start=1):
        if not course.grad[region] or is_link[number - 1]:
            continue
        begin = course.begin[region]
        place = np.searchsorted(backwards, begin)
        if _is_followed(course, number - 1, place):
            continue
        # What is there when the trace ends may yet be used.
        following = np.append(backwards, case.device.replay.num_events - 1)[place]
        mine = saved & (of_pass == number)
        used = case.sum(mine & (blocks.death >= following))
        result[number] = 2 * used < case.sum(mine) and number not in cut
    return result


def _links(case: Case) -> list[bool]:
    """Which forward passes are of a module that no backward ever follows at once, though one comes
    in their step: another module goes on from what they give.
    """
    record, course = case.report.record, case.device.course
    rounds = find_rounds_of_marks(() if record is None else record.marks)
    passes = [(each.module, round_.has_backward) for round_ in rounds for each in round_.forwards]
    num_passes = int((course.phase == Phase.FORWARD).sum())
    if len(passes) != num_passes:
        return [False] * num_passes
    places = course.begin[course.phase == Phase.BACKWARD].searchsorted(
        course.begin[course.phase == Phase.FORWARD]
    )
    followed = {
        module
        for number, ((module, _), place) in enumerate(zip(passes, places.tolist(), strict=True))
        if _is_followed(course, number, place)
    }
    return [has_backward and module not in followed for module, has_backward in passes]


def _is_followed(course: Course, number: int, place: int) -> bool:
    """True if the first backward after a forward pass comes before the next forward pass."""
    forward = course.begin[course.phase == Phase.FORWARD]
    backward = course.begin[course.phase == Phase.BACKWARD]
    if place == len(backward):
        return False
    return number + 1 == len(forward) or bool(backward[place] <= forward[number + 1])


RULES = (
    Rule(
        code="UL113",
        title="the activations of an earlier pass are still live",
        kind=Kind.FAULT,
        meaning="A name such as `output` or `loss` keeps the last iteration's tensors while the "
        "next forward pass runs; or two losses are made before either backward.",
        evidence="At the peak activations of an earlier forward pass are live, whose lines ran "
        "again in the pass after it: 8 % of the peak or more. A backward or a loss of its own came "
        "between the two passes: one loss that needs both outputs, as a contrastive one does, is "
        "no finding.",
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
        evidence="Forward passes with gradients that no backward follows before the next one, and "
        "whose activations are gone before any.",
        cost="nothing; it is faster, too",
        change="put evaluation under torch.inference_mode() or torch.no_grad()",
        find=_find_unused_graph,
    ),
)
