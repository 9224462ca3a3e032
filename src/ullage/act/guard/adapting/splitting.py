"""Into how many parts a batch is split before its step, where no plan is forecast to fit it."""

from __future__ import annotations

from collections.abc import Iterable

from ullage.act.guard.adapting.adapt import Rules, Situation
from ullage.act.guard.adapting.forecast import Need, Sizes
from ullage.ground.units import format_bytes


def choose_split(
    rules: Rules, situation: Situation, parts: Iterable[tuple[int, Sizes]], gradient_bytes: int
) -> tuple[int, str]:
    """The first rung that splits the batch and on which it is forecast to fit, else the last, and
    why; the last plan where the whole fits or nothing is known.

    A part is forecast as a batch of its sizes is on the last plan; from the second part on there
    are the gradients of those before. A batch that was split so before is forecast as it was.

    Args:
        rules: of the guard.
        situation: before the step; its rung is the last plan.
        parts: for each such rung how many parts there are, and the sizes of the largest.
        gradient_bytes: of all parameters that get one.
    """
    last = situation.rung
    need = rules.needs(situation).of(last)
    if need is None or rules.fits(situation, need):
        return last, "the whole batch is forecast to fit"
    rung, num_parts = last, 1
    for count, sizes in parts:
        rung, num_parts = rung + 1, count
        need = _need_of_parts(rules, situation, rung, sizes, gradient_bytes) or need
        if rules.fits(situation, need):
            break
    peak, room = situation.allocated_bytes + need.num_bytes, situation.capacity_bytes
    return rung, (
        f"no plan is forecast to fit; in {num_parts} parts the batch needs up to "
        f"{format_bytes(peak)} of {format_bytes(room)}"
    )


def _need_of_parts(
    rules: Rules, situation: Situation, rung: int, sizes: Sizes, gradient_bytes: int
) -> Need | None:
    measured = rules.need_measured(situation, rung)
    if measured is not None:
        return measured
    part = rules.need_of(situation, situation.rung, sizes)
    if part is None:
        return None
    return Need(part.num_bytes + gradient_bytes, part.basis, part.num_sizes)
