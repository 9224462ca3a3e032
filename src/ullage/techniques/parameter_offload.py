"""Parameters of blocks in pinned host memory, on the GPU while their block runs.

A block's parameters are fetched while the block before it runs, in forward and in backward; what
autograd saves of them is noted as a place in them, not held. Between blocks, and between steps, the
parameters are tensors of the host, which whoever reads or saves them finds there. The optimizer's
step fetches some at a time, and puts them back. Of the maintained implementations FSDP2's
CPUOffloadPolicy wants a process group and steps on the CPU, and accelerate's `cpu_offload` trains
nothing (accelerate issue 3770).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ullage.record import torch_internals
from ullage.techniques.means.nested import tensors
from ullage.techniques.means.offload_link import Link, make_link
from ullage.techniques.means.optimizer_parts import check_steps_in_parts, parts, step_some
from ullage.techniques.means.own_step import OwnStep
from ullage.techniques.technique import Action, Place, Semantics, Setting, Technique

if TYPE_CHECKING:
    from ullage.techniques.applying.target import Target

_NAME = "parameter_offload"


def _apply(target: Target, action: Action) -> None:
    import torch

    modules = [target.module(path) for path in action.modules]
    held = [_own_parameters(target.model, module) for module in modules]
    everything = [one for some in held for one in some]
    if len(set(everything)) != len(everything):
        PARAMETER_OFFLOAD.refuse("of the modules that are named one is a part of another")
    devices = {one.device for one in everything}
    if len(devices) != 1:
        PARAMETER_OFFLOAD.refuse(
            f"parameters of the named modules are on {len(devices)} devices; expected one"
        )
    if any(hasattr(one, "device_mesh") for one in everything):
        PARAMETER_OFFLOAD.refuse("its parameters are sharded; use FSDP2's CPUOffloadPolicy")
    if any(_bytes(one).numel() != one.numel() * one.element_size() for one in everything):
        PARAMETER_OFFLOAD.refuse("parameters share a storage")
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        PARAMETER_OFFLOAD.refuse("several ranks train it; use FSDP2's CPUOffloadPolicy")
    (device,) = devices
    link = make_link(device.type)
    part_bytes = int(PARAMETER_OFFLOAD.value_of(action, "part_mib")) * 2**20
    concerned = [optimizer for optimizer in target.optimizers if _holds(optimizer, set(everything))]
    for optimizer in concerned:
        check_steps_in_parts(optimizer, _NAME)
    blocks = [_Block(some, link, device) for some in held]
    for block in blocks:
        target.changes.on_undo(block.stay)
        block.move_out()
    for optimizer in concerned:
        step = _Step(optimizer, blocks, link, part_bytes)
        OwnStep(optimizer, step).apply(target.changes)
        target.changes.hook(optimizer.register_load_state_dict_post_hook(step.move_states))
    for number, path in enumerate(action.modules):
        target.wrap_forward(path, functools.partial(_run, blocks, number))


def _own_parameters(model: Any, module: Any) -> list[Any]:
    """The parameters of a module that no module outside it has."""
    inner = set(module.modules())
    others = {
        parameter
        for other in model.modules()
        if other not in inner
        for parameter in other.parameters(recurse=False)
    }
    return [parameter for parameter in module.parameters() if parameter not in others]


def _holds(optimizer: Any, parameters: set[Any]) -> bool:
    return any(one in parameters for group in optimizer.param_groups for one in group["params"])


def _run(blocks: list[_Block], number: int, forward: Any, *arguments: Any, **named: Any) -> Any:
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    if torch.compiler.is_compiling():
        PARAMETER_OFFLOAD.refuse("a block is compiled; this is for blocks that run eagerly")
    if _is_within_hooks():
        PARAMETER_OFFLOAD.refuse(
            "a block runs within a checkpoint; have the block checkpointed itself, and first"
        )
    block = blocks[number]
    block.come()
    for later in blocks[number + 1 : number + 2]:
        later.fetch()
    try:
        with saved_tensors_hooks(block.pack, _unpack):
            output = forward(*arguments, **named)
    finally:
        block.leave()

    def come_again(_: Any) -> None:
        for later in blocks[number + 1 : number + 2]:
            later.leave()
        block.come()
        for earlier in blocks[max(0, number - 1) : number]:
            earlier.fetch()

    for tensor in tensors(output):
        if tensor.requires_grad and not hasattr(tensor, "_late"):
            tensor.register_hook(come_again)
    return output


def _is_within_hooks() -> bool:
    """Whether something around the block has a say in what is saved for backward."""
    import torch

    top = torch_internals.find(torch, "torch._C._autograd._top_saved_tensors_default_hooks")
    return top is not None and top(False) is not None  # noqa: FBT003 - torch has no name for it


class _Block:
    """The parameters of a module: on the host, on their way, or on the device."""

    def __init__(self, parameters: list[Any], link: Link, device: Any) -> None:
        self._parameters = parameters
        self._link = link
        self.device = device
        self.hosts: dict[Any, Any] = {}  # bytes
        self._views: dict[Any, Any] = {}
        self._coming: list[tuple[Any, Any]] = []
        self._present: list[Any] = []
        self._places: dict[int, int] = {}
        self._versions: list[int] = []

    def move_out(self) -> None:
        """Leaves the parameters on the host alone."""
        hosts: dict[Any, Any] = {}
        for parameter in self._parameters:
            there = _bytes(parameter.data)
            hosts[parameter] = self._link.host_bytes(there.numel())
            self._link.wait(self._link.copy_out(hosts[parameter], there))
        self._link.settle()
        self.hosts = hosts
        self._views = {one: _like(one, host) for one, host in hosts.items()}
        for parameter, view in self._views.items():
            parameter.data = view

    def stay(self) -> None:
        """Puts them on the device for good."""
        self.fetch()
        self.come()
        self.hosts = {}
        self._present = []
        self._places = {}

    def fetch(self) -> None:
        """Starts to bring them to the device, where they are not there."""
        if self._coming or self._present or not self.hosts:
            return
        self._versions = self._current_versions()
        for parameter in self._parameters:
            host = self.hosts[parameter]
            there = self._link.device_bytes(host.numel(), self.device)
            self._coming.append((there, self._link.copy_in(there, host)))

    def come(self) -> None:
        """Has them on the device for what the program's stream is given from now on."""
        if self._coming and self._current_versions() != self._versions:
            self._forget_coming()  # a checkpoint was loaded, say, since they were sent for
        self.fetch()
        for parameter, (there, mark) in zip(self._parameters, self._coming, strict=False):
            self._link.wait(mark)
            parameter.data = _like(parameter, there)
            self._places[there.untyped_storage()._cdata] = len(self._present)
            self._present.append(parameter.data)
        self._coming = []

    def leave(self) -> None:
        """Frees them on the device. They have not changed there: only the optimizer's step does."""
        self._forget_coming()
        if not self._present:
            return
        if self._current_versions() != self._versions:
            PARAMETER_OFFLOAD.refuse("a block changes its parameters beside the optimizer")
        for parameter in self._parameters:
            parameter.data = self._views[parameter]
        self._present = []
        self._places = {}

    def _forget_coming(self) -> None:
        """Frees what is on its way: they change before the program has a use for them."""
        for _, mark in self._coming:
            self._link.wait(mark)
        self._coming = []

    def _current_versions(self) -> list[int]:
        return [parameter._version for parameter in self._parameters]

    def pack(self, tensor: Any) -> Any:
        """What is saved for backward; of a parameter, where it is."""
        number = self._places.get(_storage_of(tensor))
        return tensor if number is None else _Saved(self, number, tensor)

    def part(self, number: int) -> Any:
        """A parameter's values on the device."""
        self.come()
        return self._present[number]


class _Saved:
    """A view of a parameter that backward needs."""

    __slots__ = ("_block", "_dtype", "_number", "_offset", "_size", "_stride")

    def __init__(self, block: _Block, number: int, tensor: Any) -> None:
        self._block = block
        self._number = number
        self._dtype = tensor.dtype
        self._size = tensor.size()
        self._stride = tensor.stride()
        self._offset = tensor.storage_offset()

    def tensor(self) -> Any:
        """The view, on the device."""
        import torch

        storage = self._block.part(self._number).untyped_storage()
        empty = torch.empty(0, dtype=self._dtype, device=storage.device)
        return empty.set_(storage, self._offset, self._size, self._stride)


def _unpack(packed: Any) -> Any:
    return packed.tensor() if isinstance(packed, _Saved) else packed


class _Step:
    """The step of an optimizer, with few of the parameters on the device at a time."""

    def __init__(self, optimizer: Any, blocks: list[_Block], link: Link, part_bytes: int) -> None:
        self._optimizer = optimizer
        self._blocks = blocks
        self._link = link
        self._part_bytes = part_bytes

    def __call__(self) -> None:
        """Steps some parameters at a time; those of the next are on their way meanwhile."""
        for block in self._blocks:
            block.leave()
        hosts = {one: host for block in self._blocks for one, host in block.hosts.items()}
        state = self._optimizer.state
        found = list(parts(self._optimizer, self._part_bytes))
        coming = [self._fetch(part, hosts) for _, part in found[:1]]
        for index, (group, part) in enumerate(found):
            coming += [self._fetch(more, hosts) for _, more in found[index + 1 : index + 2]]
            there = self._arrived(coming.pop(0))
            states = {one: state[parameter] for parameter, one in zip(part, there, strict=True)}
            if group.get("fused") or group.get("capturable"):
                _place_counts(states)
            step_some(self._optimizer, group, there, states)
            self._put_back(part, there, hosts)
        self._link.settle()  # whoever reads a parameter on the host finds it there

    def move_states(self, optimizer: Any) -> None:
        """torch has put states that were loaded where their parameters are, on the host."""
        for block in self._blocks:
            for host in block.hosts:
                state = optimizer.state.get(host, {})
                for name, values in state.items():
                    if hasattr(values, "dim") and values.dim():
                        state[name] = values.to(block.device)

    def _fetch(self, part: list[Any], hosts: dict[Any, Any]) -> list[tuple[Any, Any]]:
        """Stand-ins for parameters, with their gradients, and the marks of their copies."""
        found: list[tuple[Any, Any]] = []
        for one in part:
            if one not in hosts:
                found.append((one, None))
                continue
            there = self._link.device_bytes(hosts[one].numel(), one.grad.device)
            mark = self._link.copy_in(there, hosts[one])
            found.append((_like(one, there), (mark, one.grad)))
        return found

    def _arrived(self, coming: list[tuple[Any, Any]]) -> list[Any]:
        for one, waited in coming:
            if waited is not None:
                mark, one.grad = waited
                self._link.wait(mark)
        return [one for one, _ in coming]

    def _put_back(self, part: list[Any], there: list[Any], hosts: dict[Any, Any]) -> None:
        import torch

        for parameter, one in zip(part, there, strict=True):
            if parameter in hosts:
                one.grad = None
                self._link.wait(self._link.copy_out(hosts[parameter], _bytes(one)))
                torch.autograd.graph.increment_version(parameter)


def _place_counts(states: dict[Any, dict[str, Any]]) -> None:
    """Puts counts of steps where a kernel reads them: beside the parameters that it steps."""
    for one, state in states.items():
        if hasattr(state.get("step"), "to"):
            state["step"] = state["step"].to(one.device)


def _bytes(tensor: Any) -> Any:
    """The storage of a tensor, as bytes."""
    import torch

    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(tensor.untyped_storage())


def _like(tensor: Any, there: Any) -> Any:
    """A tensor of the shape, strides and type of another, in bytes that are there."""
    import torch

    empty = torch.empty(0, dtype=tensor.dtype, device=there.device)
    return empty.set_(
        there.untyped_storage(),
        there.storage_offset() // tensor.element_size(),
        tensor.size(),
        tensor.stride(),
    )


def _storage_of(tensor: Any) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # it has none: sparse, or of a class of its own
        return 0


PARAMETER_OFFLOAD = Technique(
    name=_NAME,
    does="keeps parameters of modules in pinned host memory, and has those of few on the GPU",
    precondition="only the optimizer's step changes parameters, and each belongs to one block",
    proof="versions, owners and storages are compared; the optimizer is one of torch.optim",
    semantics=Semantics.SAME,
    place=Place.MODULES,
    reference="https://arxiv.org/abs/2101.06840",
    apply=_apply,
    settings={
        "part_mib": Setting(
            default=64, what="MiB of parameters that the step has on the GPU at once", least=1
        )
    },
    excludes=(
        "offload_activations", "selective_checkpoint", "tiled_mlp", "optimizer_offload",
        "bf16_states", "eight_bit_states", "four_bit_states", "bf16_parameters",
        "optimizer_in_backward", "lora", "data_parallel", "shard", "tensor_parallel",
        "zero_optimizer",
    ),
)  # fmt: skip
