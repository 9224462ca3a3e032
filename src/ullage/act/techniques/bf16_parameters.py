"""Parameters and gradients in bfloat16; the optimizer steps in float32.

Updates smaller than half a unit in the last place of bfloat16 (1/256) would be lost. They are
preserved in one of two ways: by stochastic rounding, or by a float32 master copy of each parameter,
which the optimizer steps. Stochastic rounding has a random generator of its own, so that the random
numbers of the training do not change. Only parameters of two dimensions or more are in bfloat16.
The forward runs under autocast.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ullage.act.techniques.means.mixed_precision import widened
from ullage.act.techniques.means.optimizer_parts import (
    check_steps_in_parts,
    parameters_of,
    parts,
    step_some,
)
from ullage.act.techniques.means.own_step import OwnStep
from ullage.act.techniques.technique import Action, Place, Semantics, Setting, Technique

if TYPE_CHECKING:
    from ullage.act.techniques.applying.changes import Changes
    from ullage.act.techniques.applying.target import Target

_NAME = "bf16_parameters"
_LEAST_DIMS = 2
# The lower half of a float32, which bfloat16 does not have.
_LOST = 2**16


def _apply(target: Target, action: Action) -> None:
    import torch

    part_bytes = int(BF16_PARAMETERS.value_of(action, "part_mib")) * 2**20
    has_masters = BF16_PARAMETERS.value_of(action, "keeps") == "masters"
    for optimizer in target.optimizers:
        check_steps_in_parts(optimizer, _NAME)
    if not target.optimizers:
        BF16_PARAMETERS.refuse("it has no optimizer that could preserve small updates")
    parameters = {
        parameter
        for optimizer in target.optimizers
        for parameter in parameters_of(optimizer)
        if parameter.dtype == torch.float32 and parameter.dim() >= _LEAST_DIMS
    }
    if not parameters:
        BF16_PARAMETERS.refuse("no float32 parameter of two dimensions or more is trained")
    _refuse_distributed(parameters)
    masters = _narrow(parameters, target.changes, has_masters=has_masters)
    for optimizer in target.optimizers:
        step = _Bf16Step(optimizer, parameters, masters, part_bytes)
        OwnStep(optimizer, step).apply(target.changes)
        target.changes.hook(optimizer.register_load_state_dict_post_hook(step.widen_states))
    target.wrap_forward("", functools.partial(_run, target.model))


def _refuse_distributed(parameters: Iterable[Any]) -> None:
    import torch

    distributed = torch.distributed
    is_one = not (distributed.is_available() and distributed.is_initialized())
    if any(hasattr(parameter, "device_mesh") for parameter in parameters) or not is_one:
        BF16_PARAMETERS.refuse("several ranks train it; use FSDP2's MixedPrecisionPolicy")


def _narrow(parameters: Iterable[Any], changes: Changes, *, has_masters: bool) -> dict[Any, Any]:
    """Rounds parameters, and returns their float32 master copies, if there are any."""
    import torch

    masters: dict[Any, Any] = {}
    for parameter in parameters:
        whole = parameter.data
        changes.on_undo(_turn, parameter, torch.float32, masters)
        if has_masters:
            masters[parameter] = _Master(whole)
        _turn(parameter, torch.bfloat16, {})
        if has_masters:
            masters[parameter].version = parameter._version
    return masters


def _turn(parameter: Any, dtype: Any, masters: dict[Any, Any]) -> None:
    gradient, parameter.grad = parameter.grad, None
    master = masters.pop(parameter, None)
    is_current = master is not None and master.version == parameter._version
    parameter.data = master.values if is_current else parameter.data.to(dtype)
    parameter.grad = None if gradient is None else gradient.to(dtype)


class _Master:
    """A parameter in float32, and the version of the rounded parameter that it belongs to."""

    def __init__(self, values: Any) -> None:
        self.values = values.detach()
        self.version = -1


class _Bf16Step:
    def __init__(
        self, optimizer: Any, narrow: set[Any], masters: dict[Any, Any], part_bytes: int
    ) -> None:
        self._optimizer = optimizer
        self._narrow = narrow
        self._masters = masters
        self._part_bytes = part_bytes
        self._generators: dict[Any, Any] = {}

    def __call__(self) -> None:
        """Steps some parameters at a time, in float32."""
        state = self._optimizer.state
        for group, part in parts(self._optimizer, self._part_bytes):
            wide = [self._wide(parameter) for parameter in part]
            states = {
                values: state[parameter] for values, parameter in zip(wide, part, strict=True)
            }
            step_some(self._optimizer, group, wide, states)
            for parameter, values in zip(part, wide, strict=True):
                self._put_back(parameter, values)

    def widen_states(self, optimizer: Any) -> None:
        """Converts loaded states to float32: torch gives them the dtype of their parameters."""
        for parameter, of in optimizer.state.items():
            for name, state in of.items():
                if parameter in self._narrow and hasattr(state, "dtype") and state.dim():
                    of[name] = state.float()

    def _wide(self, parameter: Any) -> Any:
        """A parameter and its gradient in float32, for the optimizer."""
        if parameter not in self._narrow:
            return parameter
        master = self._masters.get(parameter)
        if master is None:
            wide = parameter.detach().float()
        else:
            wide = master.values
            if master.version != parameter._version:  # a checkpoint was loaded, or the like
                wide.copy_(parameter.detach())
        wide.grad = parameter.grad.float()
        return wide

    def _put_back(self, parameter: Any, wide: Any) -> None:
        import torch

        if parameter not in self._narrow:
            return
        master = self._masters.get(parameter)
        wide.grad = None
        with torch.no_grad():
            if master is None:
                self._round(wide)
            parameter.copy_(wide)
        if master is not None:
            master.version = parameter._version

    def _round(self, values: Any) -> None:
        """Rounds float32 stochastically to bfloat16, in place."""
        import torch

        device = values.device
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(0)
        bits = values.view(torch.int32)
        chance = torch.empty_like(bits).random_(0, _LOST, generator=self._generators[device])
        bits.add_(chance).bitwise_and_(-_LOST)


def _run(model: Any, forward: Any, *arguments: Any, **keywords: Any) -> Any:
    import torch

    device = next(model.parameters()).device.type
    if torch.is_autocast_enabled(device):
        return forward(*arguments, **keywords)
    with torch.autocast(device, dtype=torch.bfloat16):
        outputs = forward(*arguments, **keywords)
    return widened(outputs)


BF16_PARAMETERS = Technique(
    name=_NAME,
    does="keeps parameters and gradients in bfloat16, with stochastic rounding or float32 masters",
    precondition="the optimizer updates each parameter independently, and one process trains",
    proof="its class must be in torch.optim, and not LBFGS; ranks and shards are refused",
    semantics=Semantics.ROUNDING,
    place=Place.OPTIMIZER,
    reference="https://arxiv.org/abs/2010.06192",
    apply=_apply,
    settings={
        "keeps": Setting(
            default="stochastic_rounding",
            what="how updates that are too small for bfloat16 are preserved",
            choices=("stochastic_rounding", "masters"),
        ),
        "part_mib": Setting(
            default=64, what="MiB of parameters that exist in float32 at once", least=1
        ),
    },
    excludes=(
        "autocast", "eight_bit_states", "four_bit_states", "bf16_states", "optimizer_in_backward",
        "optimizer_offload", "data_parallel", "shard", "tensor_parallel", "zero_optimizer",
    ),
    variants=({"keeps": "masters"},),
)  # fmt: skip
