"""Small operations, run on the CPU beside the phantom.

`values` sees the operations. What is here reads the bytes that the phantom knows of their inputs,
runs them on the CPU where all is known, and writes the result to the device's block.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ullage.record import library

MAX_ELEMENTS = 1 << 17
"""Larger tensors are data, not decisions."""


@dataclass(frozen=True, slots=True)
class Schema:
    """Whether an operation draws random numbers, and the arguments it writes: (position, name)."""

    is_random: bool
    written: tuple[tuple[int, str], ...]


class Known:
    """An operation's inputs whose bytes are known: CPU copies by id of the device tensor."""

    def __init__(self) -> None:
        self.inputs: dict[int, Any] = {}
        self.raw: list[tuple[int, bytearray]] = []
        self.is_complete = True


class Beside:
    """Runs small operations on the CPU and keeps the phantom's bytes in step."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._small = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
        aten = torch.ops.aten
        self._overwriting = {aten.zero_.default, aten.fill_.Scalar, aten.zero.default}
        self._shaped_alike = {  # the argument lends its shape, dtype and device, not its values
            *(aten.zeros_like.default, aten.ones_like.default, aten.full_like.default),
            *(aten.new_zeros.default, aten.new_ones.default, aten.new_full.default),
        }
        self._and = {
            *(aten.logical_and.default, aten.logical_and_.default),
            *(aten.bitwise_and.Tensor, aten.bitwise_and_.Tensor),
        }
        self._or = {
            *(aten.logical_or.default, aten.logical_or_.default),
            *(aten.bitwise_or.Tensor, aten.bitwise_or_.Tensor),
        }
        self._random = torch.Tag.nondeterministic_seeded
        self._looks = torch.Tag.inplace_view
        self._copy = aten.copy_.default
        self._schemas: dict[Any, Schema] = {}

    def tensors(self, args: Any) -> list[Any]:
        """The tensors among an operation's arguments, lists included."""
        tensor_type, found = self._torch.Tensor, []
        for arg in args:
            if isinstance(arg, tensor_type):
                found.append(arg)
            elif isinstance(arg, (list, tuple)):
                found += [item for item in arg if isinstance(item, tensor_type)]
        return found

    def has_address(self, tensor: Any) -> bool:
        """Whether a tensor has bytes of its own on the device (a fake or batched one has not)."""
        return (
            type(tensor) in self._plain
            and tensor.is_cuda
            and not self._is_wrapped(tensor)
            and not self._torch._is_functional_tensor(tensor)
        )

    def are_comparable(self, a: Any, b: Any) -> bool:
        """Whether two tensors are of one kind, so that a GPU compares their elements."""
        is_alike = a.size() == b.size() and a.dtype is b.dtype and a.device == b.device
        return is_alike and a.is_cuda and a.numel() > 0 and a.data_ptr() != b.data_ptr()

    def is_small(self, tensor: Any) -> bool:
        """Whether a device tensor holds few enough, and such, values as programs decide by."""
        count = tensor.numel()  # first: most tensors are large
        if count != 1 and not (0 < count <= MAX_ELEMENTS and tensor.dtype in self._small):
            return False
        return self.has_address(tensor)

    def may_matter(self, func: Any, args: Any) -> bool:
        """Whether an operation can have known inputs, or make values without any."""
        tensors = self.tensors(args)
        return not tensors or func in self._shaped_alike or any(map(self.is_small, tensors))

    def read_inputs(self, func: Any, args: Any) -> Known | None:
        """What is known of the inputs, read before the launch. None: nothing of interest."""
        known, num_tensors = Known(), 0
        for tensor in self.tensors(args):
            if not tensor.is_cuda and tensor.dim() == 0:
                continue
            num_tensors += 1
            if func in self._shaped_alike:
                size = tensor.size() if tensor.numel() <= MAX_ELEMENTS else (0,)
                known.inputs[id(tensor)] = self._torch.empty(size, dtype=tensor.dtype, device="cpu")
                continue
            raw = self._read(tensor) if self.is_small(tensor) else None
            if raw is None and func in self._overwriting and self.is_small(tensor):
                raw = bytearray(self._span(tensor))
            if raw is None:
                known.is_complete = False
            else:
                known.inputs[id(tensor)] = self._view(raw, tensor)
                known.raw.append((tensor.data_ptr(), raw))
        if known.inputs:
            if not known.is_complete and func in self._and | self._or:
                self._decide_by_one(func, args, known)
            return known
        # Without any tensor among the inputs (arange, full) all of them are known.
        return known if num_tensors == 0 and self._is_factory(func) else None

    def _decide_by_one(self, func: Any, args: Any, known: Known) -> None:
        """False and anything is False, True or anything is True: the unknown one does not matter.

        Text generation stops so: at the greatest length, or when unknown tokens end each text.
        """
        (one,) = known.inputs.values()
        is_decided = (
            not one.any() if func in self._and else one.dtype is self._torch.bool and one.all()
        )
        if not is_decided:
            return
        for other in self.tensors(args):
            if id(other) not in known.inputs and self.is_small(other):
                known.inputs[id(other)] = self._torch.zeros_like(other, device="cpu")
                known.is_complete = True

    def forget_written(self, func: Any, args: Any, kwargs: Any) -> None:
        """Tells the phantom what the operation is about to write."""
        names = self._schema(func).written
        if not names or self._is_plain_copy(func, args):
            return
        for position, name in names:
            for tensor in self.tensors(
                (args[position] if position < len(args) else kwargs.get(name),)
            ):
                if self.has_address(tensor):
                    self.forget(tensor)

    def follow(self, func: Any, args: Any, kwargs: Any, known: Known, result: Any) -> None:
        """After the operation: restores what it only read, and computes what it made."""
        schema = self._schema(func)
        if not schema.written:
            for address, raw in known.raw:
                self._write(address, raw)
        outputs = [item for item in self.tensors((result,)) if item.is_cuda]
        if (
            not known.is_complete
            or schema.is_random
            or not outputs
            or not all(map(self.is_small, outputs))
        ):
            return
        if not schema.written and any(self._is_alias(output, args) for output in outputs):
            return
        try:
            with self._torch.no_grad(), self._torch._C.DisableTorchFunction():
                true = func(*self._on_cpu(args, known), **self._kwargs_on_cpu(kwargs))
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            return  # no CPU kernel for it: its result stays unknown
        for device_tensor, cpu_tensor in zip(outputs, self.tensors((true,)), strict=False):
            self.store(device_tensor, cpu_tensor)

    def packed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The arguments of a copy. What lies apart on the device is packed on the way to the host,
        within the copy, where nobody sees it; here it is packed by an operation of its own, which
        takes the same memory.
        """
        position = 1 if func is self._copy else 0
        source = args[position]
        device = args[0].device if func is self._copy else kwargs.get("device")
        if device is None or device.type != "cpu" or not self.is_small(source):
            return args
        if self._span(source) == source.numel() * source.element_size():
            return args
        dtype = args[0].dtype if func is self._copy else kwargs.get("dtype") or source.dtype
        return (*args[:position], source.to(dtype).contiguous(), *args[position + 1 :])

    def take_over(self, tensor: Any) -> None:
        """Answers from now on for what a copy has brought to the device: it is seen who writes it.

        Until then a launch that leaves its address on the stack by chance makes it unknown.
        """
        if self.is_small(tensor):
            self._read(tensor)

    def count(self, func: Any, flags: list[Any]) -> int:
        """How many elements nonzero (or an index by flags), unique or repeat_interleave finds."""
        if "unique" in str(func):
            return int(self._torch.unique(flags[0]).numel())
        if "repeat" in str(func):
            return int(flags[0].sum())
        return max(int(flag.count_nonzero()) for flag in flags)

    def _is_factory(self, func: Any) -> bool:
        name = func._schema.name
        return (
            not self._schema(func).is_random
            and not name.startswith("aten::empty")
            and "new_empty" not in name
        )

    def _is_plain_copy(self, func: Any, args: Any) -> bool:
        """A copy that the driver makes, byte by byte: the phantom follows it by itself."""
        if func is not self._copy or len(args) < 2:
            return False
        to, of = args[0], args[1]
        return bool(
            to.dtype is of.dtype
            and to.is_contiguous()
            and of.is_contiguous()
            and to.size() == of.size()
        )

    def _schema(self, func: Any) -> Schema:
        schema = self._schemas.get(func)
        if schema is None:
            written = tuple(
                (position, argument.name)
                for position, argument in enumerate(func._schema.arguments)
                if argument.alias_info is not None and argument.alias_info.is_write
            )
            if self._looks in func.tags:  # squeeze_, detach_: another look at the same bytes
                written = ()
            schema = self._schemas[func] = Schema(self._random in func.tags, written)
        return schema

    def _is_alias(self, output: Any, args: Any) -> bool:
        start = output.untyped_storage().data_ptr()
        return any(
            tensor.is_cuda and tensor.untyped_storage().data_ptr() == start
            for tensor in self.tensors(args)
        )

    def _on_cpu(self, args: Any, known: Known) -> Any:
        def moved(arg: Any) -> Any:
            if isinstance(arg, (list, tuple)):
                return type(arg)(map(moved, arg)) if type(arg) in (list, tuple) else arg
            if isinstance(arg, self._torch.device):
                return self._torch.device("cpu")
            return known.inputs.get(id(arg), arg) if isinstance(arg, self._torch.Tensor) else arg

        return [moved(arg) for arg in args]

    def _kwargs_on_cpu(self, kwargs: Any) -> Any:
        cpu = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        if cpu.get("device") is not None:
            cpu["device"] = self._torch.device("cpu")
        return cpu

    def _span(self, tensor: Any) -> int:
        """Bytes from a tensor's first element to the end of its last."""
        steps = zip(tensor.size(), tensor.stride(), strict=True)
        return int((1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size())

    def forget(self, tensor: Any) -> None:
        """Forgets a tensor's bytes; what lies beside them in its storage stays known."""
        storage, first = tensor.untyped_storage(), tensor.data_ptr()
        beside = []
        if self.is_small(tensor) and storage.nbytes() <= 8 * MAX_ELEMENTS:
            start, last = storage.data_ptr(), first + self._span(tensor)
            for at, size in ((start, first - start), (last, start + storage.nbytes() - last)):
                if size > 0 and (raw := self._read_at(at, size)) is not None:
                    beside.append((at, raw))
        library.forget(first)
        for at, raw in beside:
            self._write(at, raw)

    def _read(self, tensor: Any) -> bytearray | None:
        return self._read_at(tensor.data_ptr(), self._span(tensor))

    def _read_at(self, start: int, size: int) -> bytearray | None:
        raw = bytearray(size)
        address = (ctypes.c_char * size).from_buffer(raw)
        return raw if library.read_bytes(start, ctypes.addressof(address), size) else None

    def _write(self, address: int, raw: bytearray) -> None:
        library.write_bytes(
            address, ctypes.addressof((ctypes.c_char * len(raw)).from_buffer(raw)), len(raw)
        )

    def _view(self, raw: bytearray, like: Any) -> Any:
        flat = self._torch.frombuffer(raw, dtype=like.dtype)
        return flat.as_strided(like.size(), like.stride())

    def store(self, device_tensor: Any, cpu_tensor: Any) -> None:
        """Gives a device tensor the values of a CPU tensor of its size."""
        if device_tensor.size() != cpu_tensor.size() or math.prod(device_tensor.size()) == 0:
            return
        raw = self._read(device_tensor) or bytearray(self._span(device_tensor))
        self._view(raw, device_tensor).copy_(cpu_tensor)
        self._write(device_tensor.data_ptr(), raw)
