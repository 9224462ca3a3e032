"""`ullage.guard`: reads what it is called with, and makes a guard of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from ullage.act.guard.adapting.adapt import Adapt, read_settings
from ullage.act.guard.climb import Climb
from ullage.act.guard.failure import say
from ullage.act.guard.guard import CALM_STEPS, DEADLINE_S, Guard
from ullage.act.guard.guarded_program import check_averages, check_program
from ullage.act.guard.ladder import open_ladder
from ullage.act.techniques.applying.cap import cap as set_cap
from ullage.ground.errors import SpecError

if TYPE_CHECKING:
    from ullage.act.techniques.plan import Plan


def guard(
    model: Any,
    optimizer: Any,
    *,
    plans: str | PathLike[str] | Iterable[Plan | str | PathLike[str]] | None = None,
    scaler: Any = None,
    extra: Sequence[Any] = (),
    averages: Sequence[Any] = (),
    calm_steps: int = CALM_STEPS,
    cap: str | int | None = None,
    deadline_s: float = DEADLINE_S,
    adapt: bool | Adapt = False,
) -> Guard:
    """A guard, whose `step` runs a training step again under a leaner plan when it runs out of
    memory. It is a context manager; after it nothing is left on the model or the optimizer.

    Args:
        model: the `nn.Module`; a compiled one only with plans=[]. Where there are several ranks,
            all of them open the guard and run the same steps under it.
        optimizer: a `torch.optim.Optimizer`, or a list of several.
        plans: the rungs below the unchanged program, from the fastest to the leanest: plans, or
            files of plans; or one file of `ullage fit --ladder`, which also says up to which size
            each is proved. None: checkpoints on every other block, then on every block, of which
            nothing is proved. []: a step is run once more unchanged, with the cache given back.
        scaler: the `torch.amp.GradScaler`, if there is one.
        extra: objects with `state_dict` and `load_state_dict` that the step changes before the
            optimizer does, such as a scheduler.
        averages: moving averages of the weights (`torch.optim.swa_utils.AveragedModel`) that the
            step updates after the optimizer.
        calm_steps: after so many steps without an error that need less memory the guard goes back
            up one rung.
        cap: the most memory of the GPU that the process may take, as for `ullage.cap`; it stays
            until `ullage.cap(None)`. None: unchanged.
        deadline_s: how long a rank waits for another at most, before it raises GuardError.
        adapt: whether the need of each batch is forecast from the sizes of its tensors, and the
            rung changed before the step; True, or `ullage.Adapt` with its settings. It decides
            when the guard goes back up, and not calm_steps. See docs/guide/adapt.md.

    Raises:
        SpecError: a compiled model with rungs, a wrapper that cannot be made ready for a second
            try, or an invalid number.
        PlanError: a plan cannot be a rung, or the model has no repeated blocks.
    """
    if calm_steps < 1:
        raise SpecError(f"calm_steps={calm_steps} is not a number of steps; expected 1 or more")
    if not deadline_s > 0:
        raise SpecError(f"deadline_s={deadline_s} is not a time; expected seconds above 0")
    if cap is not None and (limited := set_cap(cap)) is not None:
        say(limited.text)
    if not isinstance(plans, str | PathLike) and plans is not None:
        plans = [*plans]
    check_program(model, has_rungs=plans != [])
    check_averages(averages)
    ladder = open_ladder(plans, model, optimizer)
    return Guard(
        model, optimizer, ladder, Climb(calm_steps), scaler=scaler, extra=tuple(extra),
        averages=tuple(averages), adapt=read_settings(adapt), deadline_s=deadline_s,
    )  # fmt: skip
