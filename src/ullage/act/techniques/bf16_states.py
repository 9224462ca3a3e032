"""Optimizer states in bfloat16 between steps; the step computes in float32.

This halves the memory of the states. A moment that decays in a step by less than half a unit in the
last place of bfloat16 (1/256) does not change. So a second moment with beta2 = 0.999 follows
growing gradients, but follows shrinking gradients only after they have shrunk a lot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.act.techniques.means.optimizer_parts import parameters_of
from ullage.act.techniques.means.stored_states import States, StoredStates, is_values
from ullage.act.techniques.technique import Action, Place, Semantics, Setting, Technique
from ullage.ground.errors import PlanError

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target


def _apply(target: Target, action: Action) -> None:
    import torch

    part_bytes = int(BF16_STATES.value_of(action, "part_mib")) * 2**20
    for optimizer in target.optimizers:
        if not any(parameter.dtype == torch.float32 for parameter in parameters_of(optimizer)):
            raise PlanError(
                "'bf16_states': no parameter is float32, so its states are already small"
            )
    for optimizer in target.optimizers:
        store = _RoundedStore(torch.float32, torch.bfloat16)
        StoredStates(optimizer, store, part_bytes).apply("bf16_states", target.changes)


class _RoundedStore:
    """States of one dtype, stored in a smaller dtype on the device of their parameters."""

    num_ahead = 0

    def __init__(self, wide: Any, narrow: Any) -> None:
        self._wide = wide
        self._narrow = narrow

    def fetch(self, stored: States) -> States:
        """The states in the wide dtype; for parameters of the narrow dtype, unchanged."""
        return {
            parameter: {
                name: self._converted(state, self._narrow, parameter.dtype)
                for name, state in of.items()
            }
            for parameter, of in stored.items()
        }

    def begin(self) -> None:
        """Nothing to wait for."""

    def keep(self, states: States, stored: States) -> None:
        for parameter, of in states.items():
            for name, state in of.items():
                storage = stored[parameter].get(name)
                if storage is not None and is_values(state) and storage.dtype == self._narrow:
                    storage.copy_(state)
                else:
                    stored[parameter][name] = self._converted(state, self._wide, self._narrow)

    def end(self) -> None:
        """Nothing to do."""

    def settle(self) -> None:
        """Nothing to wait for."""

    def _converted(self, state: Any, of: Any, to: Any) -> Any:
        return state.to(to) if is_values(state) and state.dtype == of else state


BF16_STATES = Technique(
    name="bf16_states",
    does="stores optimizer states in bfloat16 between steps; the step computes in float32",
    precondition="the optimizer updates each parameter independently",
    proof="its class must be in torch.optim, and not LBFGS",
    semantics=Semantics.ROUNDING,
    place=Place.OPTIMIZER,
    reference="https://arxiv.org/abs/2412.19437",
    apply=_apply,
    settings={
        "part_mib": Setting(
            default=64, what="MiB of parameters whose states exist in float32 at once", least=1
        )
    },
    excludes=("optimizer_in_backward", "optimizer_offload", "eight_bit_states"),
)
