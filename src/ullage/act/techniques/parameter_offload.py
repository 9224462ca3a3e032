"""Parameters of blocks in pinned host memory; they are on the GPU while their block runs.

The parameters of a block are fetched while the block before it runs, in forward and in backward. If
autograd saves a parameter, its position in the block is recorded, not the tensor. Between blocks
and between steps, the parameters are host tensors, which the program can read or save. The
optimizer's step fetches some parameters at a time and writes them back. Maintained alternatives do
not fit: FSDP2's CPUOffloadPolicy needs a process group and steps on the CPU, and accelerate's
`cpu_offload` is not for training (accelerate issue 3770).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ullage.act.techniques.means.nested import tensors
from ullage.act.techniques.means.offloading.offload_link import Link, bytes_of, make_link
from ullage.act.techniques.means.optimizer_parts import (
    check_steps_in_parts,
    parameters_of,
    parts,
    step_some,
)
from ullage.act.techniques.means.own_step import OwnStep
from ullage.act.techniques.technique import Action, Place, Semantics, Setting, Technique
from ullage.players.inside import torch_internals

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target

_NAME = "parameter_offload"


def _apply(target: Target, action: Action) -> None:
    import torch

    modules = [target.module(path) for path in action.modules]
    block_parameters = [_own_parameters(target.model, module) for module in modules]
    everything = [parameter for some in block_parameters for parameter in some]
    if len(set(everything)) != len(everything):
        PARAMETER_OFFLOAD.refuse("one of the modules is a part of another")
    devices = {parameter.device for parameter in everything}
    if len(devices) != 1:
        PARAMETER_OFFLOAD.refuse(
            f"parameters of the modules are on {len(devices)} devices; expected one"
        )
    if any(hasattr(parameter, "device_mesh") for parameter in everything):
        PARAMETER_OFFLOAD.refuse("its parameters are sharded; use FSDP2's CPUOffloadPolicy")
    if any(
        bytes_of(parameter).numel() != parameter.numel() * parameter.element_size()
        for parameter in everything
    ):
        PARAMETER_OFFLOAD.refuse("parameters share a storage")
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        PARAMETER_OFFLOAD.refuse("several ranks train it; use FSDP2's CPUOffloadPolicy")
    (device,) = devices
    link = make_link(device.type)
    part_bytes = int(PARAMETER_OFFLOAD.value_of(action, "part_mib")) * 2**20
    stepping = [
        optimizer
        for optimizer in target.optimizers
        if not set(everything).isdisjoint(parameters_of(optimizer))
    ]
    for optimizer in stepping:
        check_steps_in_parts(optimizer, _NAME)
    blocks = [_Block(some, link, device) for some in block_parameters]
    for block in blocks:
        target.changes.on_undo(block.stay)
        block.move_out()
    for optimizer in stepping:
        step = _Step(optimizer, blocks, link, part_bytes)
        OwnStep(optimizer, step).apply(target.changes)
        target.changes.hook(optimizer.register_load_state_dict_post_hook(step.move_states))
    for number, path in enumerate(action.modules):
        target.wrap_forward(path, functools.partial(_run, blocks, number))


def _own_parameters(model: Any, module: Any) -> list[Any]:
    """The parameters of a module that it does not share with modules outside."""
    inner = set(module.modules())
    others = {
        parameter
        for other in model.modules()
        if other not in inner
        for parameter in other.parameters(recurse=False)
    }
    return [parameter for parameter in module.parameters() if parameter not in others]


def _run(blocks: list[_Block], number: int, forward: Any, *arguments: Any, **keywords: Any) -> Any:
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    if torch.compiler.is_compiling():
        PARAMETER_OFFLOAD.refuse("a block is compiled; the technique needs blocks that run eagerly")
    if _is_within_hooks():
        PARAMETER_OFFLOAD.refuse(
            "a block runs within a checkpoint; checkpoint the block itself, and do it first"
        )
    block = blocks[number]
    block.come()
    for later in blocks[number + 1 : number + 2]:
        later.fetch()
    try:
        with saved_tensors_hooks(block.pack, _unpack):
            output = forward(*arguments, **keywords)
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
    """True if saved-tensor hooks are active around the block."""
    import torch

    top = torch_internals.find(torch, "torch._C._autograd._top_saved_tensors_default_hooks")
    return top is not None and top(False) is not None  # noqa: FBT003 - torch has no name for it


class _Block:
    """The parameters of a module: on the host, being copied, or on the device."""

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
        hosts: dict[Any, Any] = {}
        for parameter in self._parameters:
            storage_bytes = bytes_of(parameter.data)
            hosts[parameter] = self._link.host_bytes(storage_bytes.numel())
            self._link.wait(self._link.copy_out(hosts[parameter], storage_bytes))
        self._link.settle()
        self.hosts = hosts
        self._views = {parameter: _like(parameter, host) for parameter, host in hosts.items()}
        for parameter, view in self._views.items():
            parameter.data = view

    def stay(self) -> None:
        """Moves them back to the device permanently."""
        self.fetch()
        self.come()
        self.hosts = {}
        self._present = []
        self._places = {}

    def fetch(self) -> None:
        """Starts to copy them to the device, if they are not there."""
        if self._coming or self._present or not self.hosts:
            return
        self._versions = self._current_versions()
        for parameter in self._parameters:
            host = self.hosts[parameter]
            device_bytes = self._link.device_bytes(host.numel(), self.device)
            self._coming.append((device_bytes, self._link.copy_in(device_bytes, host)))

    def come(self) -> None:
        """Makes them available on the device to work that is queued from now on."""
        if self._coming and self._current_versions() != self._versions:
            self._forget_coming()  # for example, a checkpoint was loaded after the copy started
        self.fetch()
        for parameter, (device_bytes, mark) in zip(self._parameters, self._coming, strict=False):
            self._link.wait(mark)
            parameter.data = _like(parameter, device_bytes)
            self._places[device_bytes.untyped_storage()._cdata] = len(self._present)
            self._present.append(parameter.data)
        self._coming = []

    def leave(self) -> None:
        """Frees them on the device. They are unchanged: only the optimizer's step changes them."""
        self._forget_coming()
        if not self._present:
            return
        if self._current_versions() != self._versions:
            PARAMETER_OFFLOAD.refuse("a block changes its parameters outside the optimizer's step")
        for parameter in self._parameters:
            parameter.data = self._views[parameter]
        self._present = []
        self._places = {}

    def _forget_coming(self) -> None:
        """Discards copies that would be outdated when the program uses them."""
        for _, mark in self._coming:
            self._link.wait(mark)
        self._coming = []

    def _current_versions(self) -> list[int]:
        return [parameter._version for parameter in self._parameters]

    def pack(self, tensor: Any) -> Any:
        """The object that is saved for backward: for a parameter, its position."""
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
    def __init__(self, optimizer: Any, blocks: list[_Block], link: Link, part_bytes: int) -> None:
        self._optimizer = optimizer
        self._blocks = blocks
        self._link = link
        self._part_bytes = part_bytes

    def __call__(self) -> None:
        """Steps some parameters at a time, and copies the next ones meanwhile."""
        for block in self._blocks:
            block.leave()
        hosts = {
            parameter: host for block in self._blocks for parameter, host in block.hosts.items()
        }
        state = self._optimizer.state
        all_parts = list(parts(self._optimizer, self._part_bytes))
        coming = [self._fetch(part, hosts) for _, part in all_parts[:1]]
        for index, (group, part) in enumerate(all_parts):
            coming += [self._fetch(more, hosts) for _, more in all_parts[index + 1 : index + 2]]
            stand_ins = self._arrived(coming.pop(0))
            states = {
                stand_in: state[parameter]
                for parameter, stand_in in zip(part, stand_ins, strict=True)
            }
            if group.get("fused") or group.get("capturable"):
                _place_counts(states)
            step_some(self._optimizer, group, stand_ins, states)
            self._put_back(part, stand_ins, hosts)
        self._link.settle()  # the program may read the host tensors now

    def move_states(self, optimizer: Any) -> None:
        """Moves loaded states to the device: torch puts them on the host, with the parameters."""
        for block in self._blocks:
            for host in block.hosts:
                state = optimizer.state.get(host, {})
                for name, values in state.items():
                    if hasattr(values, "dim") and values.dim():
                        state[name] = values.to(block.device)

    def _fetch(self, part: list[Any], hosts: dict[Any, Any]) -> list[tuple[Any, Any]]:
        fetches: list[tuple[Any, Any]] = []
        for parameter in part:
            if parameter not in hosts:
                fetches.append((parameter, None))
                continue
            device_bytes = self._link.device_bytes(hosts[parameter].numel(), parameter.grad.device)
            mark = self._link.copy_in(device_bytes, hosts[parameter])
            fetches.append((_like(parameter, device_bytes), (mark, parameter.grad)))
        return fetches

    def _arrived(self, coming: list[tuple[Any, Any]]) -> list[Any]:
        for stand_in, waited in coming:
            if waited is not None:
                mark, stand_in.grad = waited
                self._link.wait(mark)
        return [stand_in for stand_in, _ in coming]

    def _put_back(self, part: list[Any], stand_ins: list[Any], hosts: dict[Any, Any]) -> None:
        import torch

        for parameter, stand_in in zip(part, stand_ins, strict=True):
            if parameter in hosts:
                stand_in.grad = None
                self._link.wait(self._link.copy_out(hosts[parameter], bytes_of(stand_in)))
                torch.autograd.graph.increment_version(parameter)


def _place_counts(states: dict[Any, dict[str, Any]]) -> None:
    """Moves step counts to the device of the parameters, where the kernel reads them."""
    for parameter, state in states.items():
        if hasattr(state.get("step"), "to"):
            state["step"] = state["step"].to(parameter.device)


def _like(tensor: Any, storage_bytes: Any) -> Any:
    """A tensor with the shape, strides and dtype of another, on the given bytes."""
    import torch

    empty = torch.empty(0, dtype=tensor.dtype, device=storage_bytes.device)
    return empty.set_(
        storage_bytes.untyped_storage(),
        storage_bytes.storage_offset() // tensor.element_size(),
        tensor.size(),
        tensor.stride(),
    )


def _storage_of(tensor: Any) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (
        NotImplementedError,
        RuntimeError,
    ):  # sparse tensors and some subclasses have no storage
        return 0


PARAMETER_OFFLOAD = Technique(
    name=_NAME,
    does="stores parameters of modules in pinned host memory, with a few at a time on the GPU",
    precondition="only the optimizer's step changes parameters, and each belongs to one block",
    proof="versions, owners and storages are compared; the optimizer must be of torch.optim",
    semantics=Semantics.SAME,
    place=Place.MODULES,
    reference="https://arxiv.org/abs/2101.06840",
    apply=_apply,
    settings={
        "part_mib": Setting(
            default=64, what="MiB of parameters on the GPU at once during the step", least=1
        )
    },
    excludes=(
        "offload_activations", "selective_checkpoint", "tiled_mlp", "optimizer_offload",
        "bf16_states", "eight_bit_states", "four_bit_states", "bf16_parameters",
        "optimizer_in_backward", "lora", "data_parallel", "shard", "tensor_parallel",
        "zero_optimizer",
    ),
)  # fmt: skip
