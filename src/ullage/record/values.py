"""Values that steer programs: small integers, flags and scalars, computed beside the phantom.

Kernels do not run, so a mask that a kernel made would read as zeros. Where every input of an
operation is small and its bytes are known to the phantom, the operation runs on the CPU as well,
and its result is written to the device's block: whatever reads it later (item, bool, a copy) gets
the true value. All else stays unknown.

An operation whose output *shape* hangs on an unknown value (nonzero, unique, a boolean index) is
told the worst case, and noted with its place.

Operations are seen at a dispatch key that torch keeps free for tests and puts before all others. A
TorchDispatchMode would not do: autograd and composite operations ask whether one is active, and
then allocate otherwise. Backward and optimizer are left alone: no value steers anything there.
"""

from __future__ import annotations

import ctypes
import functools
import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ullage.record import library
from ullage.record.place import ShapeReads
from ullage.record.weights import SkippedWeights

MAX_ELEMENTS = 1 << 16
"""Larger tensors are data, not decisions."""
_KEY = "TESTING_ONLY_GenericMode"
_SEEN = """
arange full zeros ones scalar_tensor eye zeros_like ones_like full_like new_zeros new_ones new_full
nll_loss_forward nll_loss2d_forward index_add index_add_ index_copy index_copy_ index_fill
index_fill_ scatter_add scatter_add_ put_ eq ne lt le gt ge eq_ ne_ lt_ le_ gt_ ge_ logical_and
logical_or logical_xor logical_not logical_and_ logical_or_ logical_not_ bitwise_and bitwise_or
bitwise_xor bitwise_not bitwise_and_ bitwise_or_ isin isnan isinf add sub mul div floor_divide
remainder rsub pow neg abs add_ sub_ mul_ div_ floor_divide_ neg_ maximum minimum clamp clamp_
clamp_min clamp_max sign ceil floor round sum any all max min amax amin argmax argmin cumsum cumprod
prod count_nonzero mean equal cat stack where index index_put_ index_put gather scatter scatter_
index_select masked_fill masked_fill_ masked_select tril triu repeat repeat_interleave flip roll
clone sort topk bincount nonzero _unique2 unique_dim unique_consecutive constant_pad_nd searchsorted
bucketize embedding copy_ _to_copy fill_ zero_ normal_ uniform_ _amp_update_scale_
_foreach_norm _foreach_mul_ _foreach_add_ _foreach_copy_ _foreach_zero_
"""
"""Operations with kernels of their own that make, hand on, or read what programs decide by."""


class Values:
    """Sees every operation of the main thread while it is not paused."""

    def __init__(self, torch: ModuleType, weights: SkippedWeights) -> None:
        self.shapes = ShapeReads()
        self._torch = torch
        self._weights = weights
        self._beside = Beside(torch)
        self._include = getattr(torch._C, "_dispatch_tls_set_dispatch_key_included", None)
        self._is_installed = self._is_active = False
        aten = torch.ops.aten
        self._equal, self._repeat = aten.equal.default, aten.repeat_interleave.Tensor
        self._finds = {
            aten.nonzero.default: None,
            aten._unique2.default: None,
            aten.unique_dim.default: None,
            aten.unique_consecutive.default: None,
            aten.repeat_interleave.Tensor: None,
            aten.masked_select.default: torch.bool,
            aten.index.Tensor: torch.bool,
            aten.index_put_.default: torch.bool,
        }

    def install(self) -> bool:
        """Starts; False: this torch has no such key, and small values stay unknown."""
        library_type = self._torch.library.Library
        fallback = getattr(library_type, "fallback", None)
        if self._include is None or fallback is None:
            return False
        self._rest = library_type("_", "IMPL")
        fallback(self._rest, self._torch.library.fallthrough_kernel, _KEY)
        self._seen = library_type("aten", "IMPL")
        for name in _SEEN.split():
            packet = getattr(self._torch.ops.aten, name, None)
            for overload in packet.overloads() if packet is not None else ():
                op = getattr(packet, overload)
                # What is made of others comes apart by itself, and they are seen one by one.
                if "out" not in overload and self._is_whole(op.name()):
                    self._seen.impl(op, functools.partial(self._follow, op), _KEY)
        self._is_installed = True
        self.resume()
        return True

    def _is_whole(self, name: str) -> bool:
        """Whether an operation has a kernel of its own."""
        c = self._torch._C
        return c._dispatch_has_kernel(name) and not c._dispatch_has_kernel_for_dispatch_key(
            name, "CompositeImplicitAutograd"
        )

    def pause(self) -> None:
        """Lets operations through unseen: they are taken to read what is known, not to write it."""
        self._switch(is_active=False)

    def resume(self) -> None:
        """Sees operations again."""
        self._switch(is_active=self._is_installed)

    def _switch(self, *, is_active: bool) -> None:
        if not self._is_installed:
            return
        self._is_active = is_active
        library.follow_thread(int(not is_active))
        self._include(_KEY, is_active)  # type: ignore[misc]

    def forget_optimizer(self, optimizer: Any) -> None:
        """Forgets the small values that an optimizer is about to write: counts of its steps."""
        held = [*optimizer.param_groups, *optimizer.state.values()]
        for tensor in self._beside.tensors(value for owner in held for value in owner.values()):
            if self._beside.is_small(tensor):
                library.forget(tensor.data_ptr())

    def _follow(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        if op in self._weights.fills and self._weights.is_skipped(args[0]):
            return args[0]
        if op is self._equal and self._beside.are_comparable(*args):
            # What it does on a GPU, step by step, so that each step is seen.
            return bool(args[0].eq(args[1]).all().item())
        self._include(_KEY, False)  # type: ignore[misc]  # noqa: FBT003
        library.follow_thread(1)
        try:
            known = self._beside.read_inputs(op, args)
            self._beside.forget_written(op, args, kwargs)
            finds = op in self._finds and self._expect_count(op, args, known)
            try:
                result = op(*args, **kwargs)
            finally:
                if finds:
                    library.expect_nothing()
            if known is not None:
                self._beside.follow(op, args, kwargs, known, result)
            return result
        finally:
            library.follow_thread(int(not self._is_active))
            self._include(_KEY, self._is_active)  # type: ignore[misc]

    def _expect_count(self, op: Any, args: Any, known: Known | None) -> bool:
        """Tells the phantom how many elements will be found; False: no value decides."""
        dtype = self._finds[op]
        # Of an index or a mask what it is, not what it is applied to.
        deciding = args if dtype is None else args[1:2]
        flags = [
            tensor
            for tensor in self._beside.tensors(deciding)
            if tensor.is_cuda and (dtype is None or tensor.dtype is dtype)
        ]
        if not flags:
            return False
        true = [known.inputs.get(id(flag)) for flag in flags] if known is not None else []
        if true and all(found is not None for found in true):
            library.expect_count(self._beside.count(op, true))
            return True
        most = max(flag.numel() for flag in flags)
        library.expect_count(most)
        what = str(op).removeprefix("aten.").split(".")[0].strip("_")
        self.shapes.note(what, 8 * most, "once each" if op is self._repeat else "worst case")
        return True


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
        if not self.has_address(tensor):
            return False
        count = tensor.numel()
        return count == 1 or (tensor.dtype in self._small and 0 < count <= MAX_ELEMENTS)

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
            return known
        # Without any tensor among the inputs (arange, full) all of them are known.
        return known if num_tensors == 0 and self._is_factory(func) else None

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
                    self._forget(tensor)

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
            self._store(device_tensor, cpu_tensor)

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

    def _forget(self, tensor: Any) -> None:
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

    def _store(self, device_tensor: Any, cpu_tensor: Any) -> None:
        if device_tensor.size() != cpu_tensor.size() or math.prod(device_tensor.size()) == 0:
            return
        raw = self._read(device_tensor) or bytearray(self._span(device_tensor))
        self._view(raw, device_tensor).copy_(cpu_tensor)
        self._write(device_tensor.data_ptr(), raw)
