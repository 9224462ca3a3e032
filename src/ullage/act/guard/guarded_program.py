"""The guarded program: models, wrappers and averages that a guard can run again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ullage.ground.errors import SpecError

_REFUSED = ("DataParallel", "FullyShardedDataParallel")


def check_averages(averages: Sequence[Any]) -> None:
    """Raises SpecError for averages whose update is not finished after an error."""
    from torch.optim.swa_utils import AveragedModel

    for each in averages:
        if type(each).__dict__.get("update_parameters", AveragedModel.update_parameters) is not (
            AveragedModel.update_parameters
        ) or not isinstance(each, AveragedModel):
            raise SpecError(
                f"averages has a {type(each).__name__}; expected a torch.optim.swa_utils."
                "AveragedModel; update others after guard.step"
            )


def check_program(model: Any, *, has_rungs: bool) -> None:
    """Raises SpecError for what the guard does not know how to run again."""
    from ullage.act.guard.captured import is_compiled

    if has_rungs and is_compiled(model):
        raise SpecError(
            "the model is compiled, and would be compiled anew for each rung; pass plans=[] to run "
            "a step again unchanged"
        )
    for module in model.modules():
        if type(module).__name__ in _REFUSED:
            raise SpecError(
                f"{type(module).__name__} is not supported; DistributedDataParallel and "
                "fully_shard are"
            )


def parameters_of(model: Any, optimizers: Sequence[Any]) -> list[Any]:
    """The parameters of a model and its optimizers, each once."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    parameters = [*model.parameters(), *(each for group in groups for each in group["params"])]
    return [*{id(parameter): parameter for parameter in parameters}.values()]
