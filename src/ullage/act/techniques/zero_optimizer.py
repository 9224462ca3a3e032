"""Each rank has the optimizer states of its share of the parameters, and updates that share
(ZeRO-1).

torch's ZeroRedundancyOptimizer distributes the parameters, steps each rank's share with an
optimizer of the program's class, and broadcasts the results. The program continues to call its own
optimizer, whose group settings are read at each step. Its `state_dict` is complete, gathered from
all ranks.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ullage.act.techniques.means.optimizer_parts import check_steps_in_parts, parameters_of
from ullage.act.techniques.means.own_step import OwnStep
from ullage.act.techniques.means.sharing.rank_groups import join
from ullage.act.techniques.means.stored_states import is_values
from ullage.act.techniques.technique import Action, Place, Semantics, Technique
from ullage.players.inside.owners.module_trees import live_owners

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target

_NAME = "zero_optimizer"


def _apply(target: Target, _: Action) -> None:
    join(_NAME, target.model, target.changes)
    if not _is_averaged(target.module("")):
        ZERO_OPTIMIZER.refuse(
            "nothing averages its gradients over the ranks; put 'data_parallel' before it"
        )
    for optimizer in target.optimizers:
        check_steps_in_parts(optimizer, _NAME)
        if optimizer.state:
            ZERO_OPTIMIZER.refuse(
                "its optimizer has states already; load them after the plan is applied"
            )
        _Distributed(optimizer).apply(target)


def _is_averaged(model: Any) -> bool:
    import torch

    wrapper = torch.nn.parallel.DistributedDataParallel
    modules, _ = live_owners(torch)
    return any(
        isinstance(module, wrapper) and any(part is model for part in module.modules())
        for module in modules
    )


class _Distributed:
    """An optimizer whose states are distributed over the ranks."""

    def __init__(self, optimizer: Any) -> None:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        kind = type(optimizer)
        known = inspect.signature(kind.__init__).parameters
        self._optimizer = optimizer
        self._whole = ZeroRedundancyOptimizer(
            [dict(group) for group in optimizer.param_groups],
            kind,
            **{name: value for name, value in optimizer.defaults.items() if name in known},
        )
        self._share_groups()

    def apply(self, target: Target) -> None:
        """Makes the optimizer step only its share, until the changes are undone."""
        optimizer, changes = self._optimizer, target.changes
        changes.on_undo(self._give_back)
        OwnStep(optimizer, self._whole.step).apply(changes)
        changes.hook(optimizer.register_state_dict_post_hook(self._gather))
        changes.hook(optimizer.register_load_state_dict_pre_hook(self._deal))
        changes.hook(optimizer.register_load_state_dict_post_hook(self._share_groups))

    def _gather(self, _: Any, states: dict[str, Any]) -> dict[str, Any]:
        """The complete states, on every rank: any rank may be the one that saves them."""
        import torch
        from torch import distributed

        own = {
            number: {
                name: state.cpu() if isinstance(state, torch.Tensor) else state
                for name, state in self._whole.optim.state[parameter].items()
            }
            for number, parameter in enumerate(parameters_of(self._optimizer))
            if parameter in self._whole.optim.state
        }
        parts: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(parts, own)
        whole_states = {number: of for part in parts for number, of in part.items()}
        return {**states, "state": dict(sorted(whole_states.items()))}

    def _deal(self, _: Any, states: dict[str, Any]) -> dict[str, Any]:
        """Takes this rank's share of complete states."""
        self._whole.load_state_dict({**states, "state": dict(states["state"])})
        return {**states, "state": {}}

    def _share_groups(self, _: Any = None) -> None:
        self._whole.param_groups = self._optimizer.param_groups

    def _give_back(self) -> None:
        """Returns the complete states to the program's optimizer."""
        whole_states = self._gather(None, self._optimizer.state_dict())["state"]
        for number, parameter in enumerate(parameters_of(self._optimizer)):
            if number in whole_states:
                self._optimizer.state[parameter] = {
                    name: state.to(parameter.device) if is_values(state) else state
                    for name, state in whole_states[number].items()
                }


ZERO_OPTIMIZER = Technique(
    name=_NAME,
    does="stores a share of the optimizer states on each rank (ZeRO-1)",
    precondition=(
        "the optimizer updates each parameter independently, and gradients are averaged over ranks"
    ),
    proof=(
        "its class must be in torch.optim, and it takes no closures; the program must not "
        "distribute its training itself"
    ),
    semantics=Semantics.SAME,
    place=Place.OPTIMIZER,
    reference="https://docs.pytorch.org/docs/stable/distributed.optim.html",
    apply=_apply,
    excludes=(
        "optimizer_in_backward", "optimizer_offload", "bf16_states", "eight_bit_states",
        "four_bit_states", "bf16_parameters", "lora", "parameter_offload",
    ),
    needs_ranks=True,
)  # fmt: skip
