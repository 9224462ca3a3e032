"""A model whose parameters FSDP2 has split, for a program that knows nothing of it.

FSDP2 replaces the parameters by new ones. Here optimizers get the new parameters, state dicts are
complete when the program requests them, and all of it can be undone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from ullage.act.techniques.applying.changes import Changes
from ullage.act.techniques.means.optimizer_parts import parameters_of
from ullage.ground.errors import PlanError

_HOOKS = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks",
    "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


class Sharded:
    """A model whose modules are split one after another.

    Args:
        model: the outermost module, as the program created it.
        changes: where the undo steps are recorded.
    """

    def __init__(self, model: Any, changes: Changes) -> None:
        self._changes = changes
        self._places = list(_places(model))
        self._had: list[tuple[Any, list[list[Any]]]] = []  # optimizers, and what their groups had
        changes.on_undo(self._put_back)
        changes.hook(model.register_state_dict_post_hook(_gather))
        changes.hook(model.register_load_state_dict_pre_hook(_deal))

    def split(self, module: Any, device: str, **settings: Any) -> None:
        """Splits a module's parameters that are not split yet, and moves it to the device."""
        from torch.distributed import get_world_size
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self._changes.on_undo(_undress, {part: _looks(part) for part in module.modules()})
        fully_shard(module, mesh=init_device_mesh(device, (get_world_size(),)), **settings)
        for owner, name, old in self._places:
            if owner._parameters[name] is not old:
                _retire(old)

    def hand_over(self, optimizers: list[Any]) -> None:
        """Gives optimizers the new parameters, and makes their state dicts complete.

        Raises:
            PlanError: an optimizer has states of the old parameters.
        """
        new = {id(old): owner._parameters[name] for owner, name, old in self._places}
        for optimizer in optimizers:
            if any(known is optimizer for known, _ in self._had):
                continue
            if any(id(parameter) in new for parameter in optimizer.state):
                raise PlanError(
                    "'shard' does not go with this program: its optimizer has states already; "
                    "load them after the plan is applied"
                )
            self._had.append((optimizer, [group["params"] for group in optimizer.param_groups]))
            for group in optimizer.param_groups:
                group["params"] = [
                    new.get(id(parameter), parameter) for parameter in group["params"]
                ]
            self._changes.hook(optimizer.register_state_dict_post_hook(_gather_states))
            self._changes.hook(optimizer.register_load_state_dict_pre_hook(_deal_states))

    def _put_back(self) -> None:
        """Restores complete parameters, in the original objects."""
        done: set[int] = set()
        for owner, name, old in self._places:
            if owner._parameters[name] is not old and id(old) not in done:
                _reinstate(old, owner._parameters[name])
            done.add(id(old))
            owner._parameters[name] = old
        for optimizer, had in self._had:
            for group, parameters in zip(optimizer.param_groups, had, strict=False):
                for split, old in zip(group["params"], parameters, strict=False):
                    states = optimizer.state.pop(split, None)
                    if states is not None:
                        optimizer.state[old] = {
                            name: _whole(state) for name, state in states.items()
                        }
                group["params"] = parameters


def _places(model: Any) -> Iterator[tuple[Any, str, Any]]:
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield module, name, parameter


# ---- Parameters that are no longer those of the model --------------------------------------------


@functools.cache
def _retired() -> type:
    """The class of replaced parameters."""
    import torch

    class Retired(torch.nn.Parameter):  # type: ignore[misc]
        """A replaced parameter that the program still refers to; each use is refused."""

        grad = property(lambda _: _refuse())

        @classmethod
        def __torch_function__(cls, function: Any, *_: Any, **__: Any) -> Any:
            _refuse(getattr(function, "__name__", ""))

    return Retired


def _refuse(what: str = "grad") -> NoReturn:
    raise PlanError(
        f"'shard' does not go with this program: it uses {what!r} of a parameter that it stored "
        "before its model was split among the ranks; take it from model.parameters()"
    )


def _retire(parameter: Any) -> None:
    """Frees a parameter, and refuses its use from now on."""
    if type(parameter) is not _retired():
        parameter.data = parameter.data.new_empty(0)
        parameter.__class__ = _retired()


def _reinstate(parameter: Any, split: Any) -> None:
    """Restores a parameter, with the present values and gradient."""
    import torch

    if type(parameter) is _retired():
        parameter.__class__ = torch.nn.Parameter
    parameter.data = _whole(split.detach())
    parameter.grad = None if split.grad is None else _whole(split.grad)


# ---- Whole tensors of split ones, and back -------------------------------------------------------


def _whole(value: Any) -> Any:
    """The complete tensor; all ranks must call this."""
    gather: Callable[[], Any] | None = getattr(value, "full_tensor", None)
    return value if gather is None else gather()


def _saved(value: Any) -> Any:
    """The complete tensor in host memory, because all of them would not fit the device."""
    whole = _whole(value)
    return whole if whole is value else whole.cpu()


def _part_like(parameter: Any, value: Any) -> Any:
    """This rank's part of a complete tensor, split like a parameter."""
    import torch
    from torch.distributed.tensor import distribute_tensor

    is_whole = isinstance(value, torch.Tensor) and not hasattr(value, "device_mesh")
    if not is_whole or not hasattr(parameter, "device_mesh") or value.shape != parameter.shape:
        return value
    mesh = parameter.device_mesh
    part = distribute_tensor(value.detach().to(mesh.device_type), mesh, parameter.placements)
    return part.to(parameter.device)


def _gather(_module: Any, states: dict[str, Any], prefix: str, _metadata: Any) -> None:
    for name, state in states.items():
        if name.startswith(prefix):
            states[name] = _saved(state)


def _deal(module: Any, states: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if prefix + name in states:
            states[prefix + name] = _part_like(parameter, states[prefix + name])


def _gather_states(_optimizer: Any, states: dict[str, Any]) -> dict[str, Any]:
    whole_states = {
        number: {name: _saved(state) for name, state in of.items()}
        for number, of in states["state"].items()
    }
    return {**states, "state": whole_states}


def _deal_states(optimizer: Any, states: dict[str, Any]) -> dict[str, Any]:
    parameters = parameters_of(optimizer)
    own_states = {
        number: {name: _part_like(parameters[number], state) for name, state in of.items()}
        for number, of in states["state"].items()
    }
    return {**states, "state": own_states}


# ---- What FSDP2 leaves on modules ----------------------------------------------------------------


def _looks(module: Any) -> tuple[type, dict[str, Any]]:
    """The class of a module, its attributes, and the keys of its hooks."""
    own = vars(module)
    return type(module), {
        name: set(value) if name in _HOOKS else value for name, value in own.items()
    }


def _undress(before: dict[Any, tuple[type, dict[str, Any]]]) -> None:
    """Removes from modules what FSDP2 has added."""
    for module, (kind, attributes) in before.items():
        module.__class__ = kind
        own = vars(module)
        for name in [attribute for attribute in own if attribute not in attributes]:
            del own[name]
        for name in _HOOKS:
            for key in set(own.get(name, ())) - attributes.get(name, set()):
                del own[name][key]
