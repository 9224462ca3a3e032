"""Parameters that are split among ranks, for a program that continues as if each rank had all of
them.

The parameters remain the same objects with less data. State dicts are complete when all ranks
request them, gradient norms cover all parts, and all of it can be undone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NoReturn

from ullage.act.techniques.applying.changes import Changes
from ullage.act.techniques.means.optimizer_parts import parameters_of

# Optimizers that update each element independently of the rest of its tensor.
_BY_ELEMENT = {
    "SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "Adagrad", "Adadelta",
}  # fmt: skip


class SplitParameters:
    """The parameters of a model that are split among ranks.

    Args:
        refuse: raises a PlanError with a reason.
        model: the outermost module.
        rank: the number of this rank.
        size: the number of ranks.
        changes: where the undo steps are recorded.
    """

    def __init__(
        self,
        refuse: Callable[[str], NoReturn],
        model: Any,
        rank: int,
        size: int,
        *,
        changes: Changes,
    ) -> None:
        self._refuse = refuse
        self._rank = rank
        self._size = size
        self._changes = changes
        self._dims: dict[Any, int] = {}
        self._optimizers: list[Any] = []
        changes.on_undo(self._put_back)
        changes.hook(model.register_state_dict_post_hook(partial(self._gather)))
        changes.hook(model.register_load_state_dict_pre_hook(self._deal))
        self._watch_norms()

    def split(self, parameter: Any, dim: int) -> None:
        """Replaces the data of a parameter by this rank's part along a dimension."""
        if parameter in self._dims:
            return
        self._dims[parameter] = dim
        gradient, parameter.grad = parameter.grad, None
        parameter.data = self._part(parameter.data, dim)
        parameter.grad = None if gradient is None else self._part(gradient, dim)

    def hand_over(self, optimizers: list[Any]) -> None:
        """Makes the state dicts of optimizers complete.

        Raises:
            PlanError: an update depends on more than one element, or there are states already.
        """
        for optimizer in optimizers:
            kind = type(optimizer).__name__
            if kind not in _BY_ELEMENT:
                self._refuse(
                    f"{kind} may need complete parameters for its updates, and a rank has a part"
                )
            if any(dim in optimizer.state for dim in self._dims):
                self._refuse(
                    "its optimizer has states already; load them after the plan is applied"
                )
            self._optimizers.append(optimizer)
            self._changes.hook(optimizer.register_state_dict_post_hook(self._gather_states))
            self._changes.hook(optimizer.register_load_state_dict_pre_hook(self._deal_states))

    def __deepcopy__(self, _: object) -> NoReturn:
        """Refuses copies of the model: their parts could not be gathered."""
        self._refuse("it copies its model, of which each rank has parts")

    # ---- Parts and wholes ------------------------------------------------------------------------

    def _part(self, whole: Any, dim: int) -> Any:
        return whole.chunk(self._size, dim)[self._rank].clone()

    def _whole(self, part: Any, dim: int) -> Any:
        """The complete tensor; all ranks must call this."""
        import torch

        part = part.detach().contiguous()
        parts = [torch.empty_like(part) for _ in range(self._size)]
        torch.distributed.all_gather(parts, part)
        return torch.cat(parts, dim)

    def _whole_states(self, parameter: Any, states: dict[str, Any]) -> dict[str, Any]:
        return {
            name: self._whole(state, self._dims[parameter])
            if getattr(state, "shape", None) == parameter.shape
            else state
            for name, state in states.items()
        }

    def _put_back(self) -> None:
        for optimizer in self._optimizers:
            for parameter in self._dims:
                if parameter in optimizer.state:
                    optimizer.state[parameter] = self._whole_states(
                        parameter, optimizer.state[parameter]
                    )
        for parameter, dim in self._dims.items():
            gradient, parameter.grad = parameter.grad, None
            parameter.data = self._whole(parameter.data, dim)
            parameter.grad = None if gradient is None else self._whole(gradient, dim)

    # ---- Dictionaries of states ------------------------------------------------------------------

    def _gather(self, module: Any, states: dict[str, Any], prefix: str, _metadata: Any) -> None:
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if parameter in self._dims and prefix + name in states:
                # In host memory, because all of them would not fit the device.
                states[prefix + name] = self._whole(parameter.data, self._dims[parameter]).cpu()

    def _deal(self, module: Any, states: dict[str, Any], prefix: str, *_: Any) -> None:
        for name, parameter in module.named_parameters(remove_duplicate=False):
            whole = states.get(prefix + name)
            if parameter in self._dims and whole is not None and whole.shape != parameter.shape:
                states[prefix + name] = self._part(whole, self._dims[parameter])

    def _gather_states(self, optimizer: Any, states: dict[str, Any]) -> dict[str, Any]:
        whole_states = dict(states["state"])
        for number, parameter in enumerate(parameters_of(optimizer)):
            if parameter in self._dims and number in whole_states:
                whole_states[number] = self._whole_states(parameter, whole_states[number])
        return {**states, "state": whole_states}

    def _deal_states(self, optimizer: Any, states: dict[str, Any]) -> dict[str, Any]:
        own_states = dict(states["state"])
        for number, parameter in enumerate(parameters_of(optimizer)):
            dim = self._dims.get(parameter)
            if dim is None or number not in own_states:
                continue
            whole = list(parameter.shape)
            whole[dim] *= self._size
            own_states[number] = {
                name: self._part(value, dim)
                if list(getattr(value, "shape", ())) == whole
                else value
                for name, value in own_states[number].items()
            }
        return {**states, "state": own_states}

    # ---- Norms -----------------------------------------------------------------------------------

    def _watch_norms(self) -> None:
        from torch.amp.grad_scaler import GradScaler
        from torch.nn.utils import clip_grad

        norm_of = clip_grad._get_total_norm

        def total_norm(
            tensors: Iterable[Any], norm_type: float = 2.0, *arguments: Any, **keywords: Any
        ) -> Any:
            own = {id(dim.grad) for dim in self._dims}
            listed = list(tensors)
            split = [gradient for gradient in listed if id(gradient) in own]
            rest = [gradient for gradient in listed if id(gradient) not in own]
            return self._joined(
                norm_of(split, norm_type, *arguments, **keywords),
                norm_of(rest, norm_type, *arguments, **keywords),
                float(norm_type),
            )

        def scale(scaler: Any, outputs: Any) -> Any:
            if scaler.is_enabled():
                self._refuse("a GradScaler would check the parts of each rank separately")
            return scale_all(scaler, outputs)

        scale_all = GradScaler.scale
        # An internal function: programs may have imported the public one already.
        self._changes.set(clip_grad, "_get_total_norm", total_norm)
        self._changes.set(GradScaler, "scale", scale)

    def _joined(self, split: Any, rest: Any, order: float) -> Any:
        """The norm of split gradients over all ranks, joined with the norm of complete ones."""
        import torch
        from torch import distributed

        device = next(iter(self._dims)).device
        split, rest = split.to(device), rest.to(device)
        if math.isinf(order):
            distributed.all_reduce(split, distributed.ReduceOp.MAX)
            return torch.maximum(split, rest)
        powers = split**order
        distributed.all_reduce(powers)
        return (powers + rest**order) ** (1 / order)
