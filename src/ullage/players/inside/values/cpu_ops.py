"""Runs small operations on the CPU in parallel with the phantom.

values.py intercepts the operations. This module reads the known bytes of their inputs from the
phantom. If all inputs are known, it runs the operation on the CPU and writes the result to the
device's block. If some inputs are assumed (players/inside/values/policy.py), so is the result.
"""

from __future__ import annotations

import ctypes
import math
from types import ModuleType
from typing import Any

from ullage.players.inside import library
from ullage.players.inside.library import ASSUMED, TRUE_VALUE, Uniformity
from ullage.players.inside.values.known import Known, Schema
from ullage.players.inside.values.policy import Policy
from ullage.players.inside.values.uniform import CONSTANTS, RULES, TELLING, base_name, overloads
from ullage.players.inside.values.uniform_calls import UniformCalls
from ullage.players.inside.values.uniform_tensors import UniformTensors

MAX_ELEMENTS = 1 << 17
"""The maximum number of elements; programs rarely branch on larger tensors."""
MAX_FLOATS = 1 << 8
"""The maximum for floating-point tensors."""
_LISTS = ("_foreach_norm", "_foreach_mul", "_foreach_add", "_foreach_copy", "_foreach_zero")
_MAX_LISTED = 8
"""The maximum number of tensors with assumed values in one operation."""
_MAX_TRACKED = 1 << 22
"""The maximum number of elements for arithmetic on uniform tensors."""


class Beside:
    """Runs small operations on the CPU and updates the phantom's bytes."""

    def __init__(self, torch: ModuleType, policy: Policy) -> None:
        self.policy = policy
        self.uniform = UniformTensors(torch, policy)
        self._calls = UniformCalls(torch, policy)
        self._torch = torch
        whole = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
        floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        self._limits = dict.fromkeys(whole, MAX_ELEMENTS) | dict.fromkeys(floats, MAX_FLOATS)
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
        aten = torch.ops.aten
        self._copies = {aten.copy_.default, aten._to_copy.default}
        self._overwriting = {
            *(aten.zero_.default, aten.fill_.Scalar, aten.zero.default, aten.copy_.default)
        }
        self._shaped_alike = {  # use the argument's shape, dtype and device, not its values
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
        self._strided = torch.strided
        self._telling = overloads(aten, TELLING) | self._overwriting - self._copies
        self._ruled = overloads(aten, RULES)
        self._lists = overloads(aten, _LISTS)
        self._schemas: dict[Any, Schema] = {}

    def tensors(self, args: Any) -> list[Any]:
        """The tensors among an operation's arguments, lists included."""
        tensor_type, tensors = self._torch.Tensor, []
        for arg in args:
            if isinstance(arg, tensor_type):
                tensors.append(arg)
            elif isinstance(arg, (list, tuple)):
                tensors += [item for item in arg if isinstance(item, tensor_type)]
        return tensors

    def has_number_for_tensor(self, func: Any, args: Any) -> bool:
        """True if a number of Python stands where an operation takes a tensor, as 2 in x * 2."""
        tensors = self._schema(func).tensors
        return any(at < len(args) and isinstance(args[at], (int, float, complex)) for at in tensors)

    def has_address(self, tensor: Any) -> bool:
        """True if a tensor has its own bytes on the device (a fake or batched one does not)."""
        return (
            type(tensor) in self._plain
            and tensor.is_cuda
            and tensor.layout is self._strided
            and not self._is_wrapped(tensor)
            and not self._torch._is_functional_tensor(tensor)
        )

    def are_comparable(self, a: Any, b: Any) -> bool:
        """True if a GPU compares two tensors by elements: they have the same type and size."""
        is_alike = a.dtype is b.dtype and a.device == b.device and a.dtype in self._limits
        is_alike = is_alike and a.is_cuda and a.size() == b.size()
        return is_alike and a.numel() > 0 and a.data_ptr() != b.data_ptr()

    def is_small(self, tensor: Any) -> bool:
        """True if a device tensor is small, and of a type that programs branch on."""
        count = tensor.numel()  # checked first, because most tensors are large
        if count > MAX_ELEMENTS or not 0 < count <= self._limits.get(tensor.dtype, 0):
            return False
        return self.has_address(tensor)

    def _is_on_host(self, tensor: Any) -> bool:
        """True if a tensor's values are there to be read: a small plain one of the CPU's."""
        is_small = tensor.is_cpu and tensor.numel() <= self._limits.get(tensor.dtype, 0)
        return is_small and type(tensor) in self._plain and not self._is_wrapped(tensor)

    def may_matter(self, func: Any, args: Any) -> bool:
        """True if an operation may have known inputs, or makes values without inputs."""
        tensors = self.tensors(args)
        if not tensors or func in self._shaped_alike or func in self._telling:
            return True
        if func in self._lists and tensors[0].numel() != 1:
            return False  # gradients and parameters
        if any(map(self.is_small, tensors)):
            return True
        if func in self._copies and self._is_on_host(tensors[-1]):
            return True  # where it does not block, the device converts it
        if func not in self._ruled or self.policy.is_search:
            return func in self._ruled
        first = tensors[0]
        if first.dtype is not self._torch.bool and first.numel() > _MAX_TRACKED:
            return False
        on_device = filter(self.has_address, tensors[:2]) if library.has_numbers() else ()
        return any(library.number_at(tensor.data_ptr()) for tensor in on_device)

    def read_inputs(self, func: Any, args: Any) -> Known | None:
        """Reads the known inputs before the launch. None: none is known."""
        known, num_tensors = Known(), 0
        for tensor in self.tensors(args):
            if not tensor.is_cuda and tensor.dim() == 0:
                continue
            num_tensors += 1
            if self._is_on_host(tensor):
                known.inputs[id(tensor)] = tensor
                continue
            if func in self._shaped_alike:
                size = tensor.size() if tensor.numel() <= MAX_ELEMENTS else (0,)
                known.inputs[id(tensor)] = self._torch.empty(size, dtype=tensor.dtype, device="cpu")
                continue
            raw, mark = self.read(tensor) if self.is_small(tensor) else (None, 0)
            is_written = func in self._overwriting and num_tensors == 1
            if raw is None and is_written and self.is_small(tensor):
                raw, mark = bytearray(self.span(tensor)), TRUE_VALUE
            if raw is None:
                known.is_complete = False
                known.missing.append(tensor)
            else:
                if mark == ASSUMED:
                    known.assumed.add(id(tensor))
                known.inputs[id(tensor)] = self.view(raw, tensor)
                known.raw.append((tensor.data_ptr(), raw, mark))
        if known.missing:
            self._look_up(func, known)
        if known.inputs or known.numbers:
            return known
        # An operation without input tensors (arange, full) has no unknown inputs.
        return known if num_tensors == 0 and self._is_factory(func) else None

    def _look_up(self, func: Any, known: Known) -> None:
        """Adds assumptions for the unknown inputs, if the result can then be known."""
        if known.inputs and func in self._and | self._or:
            self._decide_by_one(func, known)
        if known.is_complete or len(known.missing) > _MAX_LISTED:
            return
        if not all(map(self.has_address, known.missing)):
            return
        stored = [self.uniform.stored(tensor) for tensor in known.missing]
        tells = func in self._telling or (  # so do bitwise operations on flags
            func in self._ruled and known.missing[0].dtype is self._torch.bool
        )
        are_small = all(map(self.is_small, known.missing))
        if not (tells or are_small or any(stored) or known.inputs or self.policy.is_search):
            return
        for tensor, number in zip(known.missing, stored, strict=True):
            known.numbers[id(tensor)] = number or self.uniform.of(tensor)

    def _decide_by_one(self, func: Any, known: Known) -> None:
        """Decides "False and x" and "True or x", where the unknown x does not matter.

        Text generation ends by such an operation: at the maximum length, or at unknown end tokens.
        """
        (tensor,) = known.inputs.values()
        is_decided = (
            not tensor.any()
            if func in self._and
            else tensor.dtype is self._torch.bool and tensor.all()
        )
        if not is_decided:
            return
        if all(map(self.is_small, known.missing)):
            for other in known.missing:
                known.inputs[id(other)] = self._torch.zeros_like(other, device="cpu")
            known.is_complete = True

    def forget_written(self, func: Any, args: Any, kwargs: Any) -> None:
        """Makes the phantom forget the tensors that the operation will write."""
        if not self._schema(func).written or self._is_plain_copy(func, args):
            return
        for tensor in filter(self.has_address, self.written(func, args, kwargs)):
            self.forget(tensor)

    def written(self, func: Any, args: Any, kwargs: Any) -> list[Any]:
        """The tensors that an operation writes, by its schema."""
        names = self._schema(func).written
        return self.tensors(args[at] if at < len(args) else kwargs.get(name) for at, name in names)

    def follow(self, func: Any, args: Any, kwargs: Any, known: Known, result: Any) -> None:
        """After the operation: restores the inputs that it only read, and computes the result."""
        schema = self._schema(func)
        if not schema.written:
            for address, raw, mark in known.raw:
                self._write(address, raw, mark)
        if result is None and schema.written:  # as of operations on lists in place
            result = args[schema.written[0][0]]
        outputs = self.tensors((result,))
        if not outputs or not all(map(self.has_address, outputs)):
            return
        if not schema.written and any(self._is_alias(output, args) for output in outputs):
            return
        if known.numbers:
            if self._follow_numbers(func, args, kwargs, known, outputs):
                return
            if not schema.is_random and all(map(self.is_small, outputs)):
                self._spread(known)
        if not known.is_complete or schema.is_random:
            return
        if all(map(self.is_small, outputs)):
            self._compute(func, args, kwargs, known, outputs)
        elif schema.base_name in CONSTANTS and len(outputs) == 1:
            self.uniform.write(outputs[0], CONSTANTS[schema.base_name](args), Uniformity.TRUE)

    def _compute(self, func: Any, args: Any, kwargs: Any, known: Known, outputs: list[Any]) -> None:
        try:
            with self._torch.no_grad(), self._torch._C.DisableTorchFunction():
                on_cpu = [self._moved(arg, known) for arg in args]
                computed = func(*on_cpu, **self._kwargs_on_cpu(kwargs))
                if computed is None:
                    computed = on_cpu[self._schema(func).written[0][0]]
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
            return  # the CPU has no such kernel, so the result stays unknown
        mark = ASSUMED if known.is_assumed else TRUE_VALUE
        for device_tensor, cpu_tensor in zip(outputs, self.tensors((computed,)), strict=False):
            if mark == TRUE_VALUE or self._is_plausible(cpu_tensor):
                self.store(device_tensor, cpu_tensor, mark)

    def _is_plausible(self, tensor: Any) -> bool:
        """True if a result of assumptions is finite, as all assumed values are."""
        is_whole = not (tensor.is_floating_point() or tensor.is_complex())
        return is_whole or bool(tensor.isfinite().all())

    def _follow_numbers(
        self, func: Any, args: Any, kwargs: Any, known: Known, outputs: list[Any]
    ) -> bool:
        """Computes the number of a uniform result if all inputs are uniform; False: they are not,
        or no rule gives the number.
        """
        name, output = self._schema(func).base_name, outputs[0]
        if not self.has_address(output):
            return False
        number = self._calls.result(name, args, kwargs, known, output)
        if number is None:
            return False
        value, why = number
        if output.numel() == 1:
            for tensor in known.missing:
                self.uniform.decide(tensor)
            mark = TRUE_VALUE if why is Uniformity.TRUE else ASSUMED
            filled = self._torch.full(output.size(), value, dtype=output.dtype, device="cpu")
            self.store(output, filled, mark)
        elif self.uniform.write(output, value, why) and output.dtype is self._torch.bool:
            origin = self._calls.origin(name, args, known)
            if origin is not None and why is Uniformity.ASSUMED:
                self.uniform.link(output, *origin)
        return True

    def _spread(self, known: Known) -> None:
        """Expands small uniform inputs to elements, because another input is not uniform."""
        if any(tensor.numel() > MAX_ELEMENTS for tensor in known.missing):
            return
        for tensor in known.missing:
            number = known.numbers[id(tensor)]
            self.uniform.decide(tensor)
            known.inputs[id(tensor)] = self._torch.full(
                tensor.size(), number.value, dtype=tensor.dtype, device="cpu"
            )
            if number.uniformity is not Uniformity.TRUE:
                known.assumed.add(id(tensor))
        known.is_complete = True

    def take_over(self, tensor: Any) -> None:
        """Tracks a tensor that was copied to the device. From now on intercepted operations show
        its writes; before, any launch whose arguments seem to have its address makes it unknown.
        """
        if self.is_small(tensor):
            self.read(tensor)

    def _is_factory(self, func: Any) -> bool:
        name = func._schema.name
        return (
            not self._schema(func).is_random
            and not name.startswith("aten::empty")
            and "new_empty" not in name
        )

    def _is_plain_copy(self, func: Any, args: Any) -> bool:
        """True if the driver copies the bytes, which the phantom follows by itself."""
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
            if self._looks in func.tags:  # squeeze_ and detach_ make views and write nothing
                written = ()
            is_random = self._random in func.tags
            arguments = enumerate(func._schema.arguments)
            tensors = tuple(at for at, argument in arguments if str(argument.type) == "Tensor")
            schema = self._schemas[func] = Schema(is_random, written, base_name(func), tensors)
        return schema

    def _is_alias(self, output: Any, args: Any) -> bool:
        start = output.untyped_storage().data_ptr()
        return any(
            tensor.is_cuda and tensor.untyped_storage().data_ptr() == start
            for tensor in self.tensors(args)
        )

    def _moved(self, arg: Any, known: Known) -> Any:
        # A recursive inner function would be a reference cycle and keep device tensors alive.
        if isinstance(arg, (list, tuple)):
            if type(arg) not in (list, tuple):
                return arg
            return type(arg)([self._moved(item, known) for item in arg])
        if isinstance(arg, self._torch.device):
            return self._torch.device("cpu")
        return known.inputs.get(id(arg), arg) if isinstance(arg, self._torch.Tensor) else arg

    def _kwargs_on_cpu(self, kwargs: Any) -> Any:
        cpu = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        if cpu.get("device") is not None:
            cpu["device"] = self._torch.device("cpu")
        return cpu

    def span(self, tensor: Any) -> int:
        """The bytes from a tensor's first element to the end of its last."""
        steps = zip(tensor.size(), tensor.stride(), strict=True)
        return int((1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size())

    def forget(self, tensor: Any) -> None:
        """Forgets a tensor's bytes; the other bytes of its storage stay known."""
        if tensor.numel() > MAX_ELEMENTS:
            library.forget(tensor.data_ptr())
            return
        storage, first = tensor.untyped_storage(), tensor.data_ptr()
        beside = []
        if self.is_small(tensor) and storage.nbytes() <= 8 * MAX_ELEMENTS:
            start, last = storage.data_ptr(), first + self.span(tensor)
            for at, size in ((start, first - start), (last, start + storage.nbytes() - last)):
                if size > 0:
                    raw, mark = self._read_at(at, size)
                    if raw is not None:
                        beside.append((at, raw, mark))
        library.forget(first)
        for at, raw, mark in beside:
            self._write(at, raw, mark)

    def read(self, tensor: Any) -> tuple[bytearray | None, int]:
        """The bytes of a tensor and their mark; None: some are unknown."""
        return self._read_at(tensor.data_ptr(), self.span(tensor))

    def _read_at(self, start: int, size: int) -> tuple[bytearray | None, int]:
        """The bytes and their mark; None: some are unknown."""
        raw = bytearray(size)
        address = (ctypes.c_char * size).from_buffer(raw)
        mark = library.read_bytes(start, ctypes.addressof(address), size)
        return (raw if mark else None), mark

    def _write(self, address: int, raw: bytearray, mark: int) -> None:
        library.write_bytes(
            address, ctypes.addressof((ctypes.c_char * len(raw)).from_buffer(raw)), len(raw), mark
        )

    def view(self, raw: bytearray, like: Any) -> Any:
        """A CPU tensor of these bytes, with the layout of a device tensor."""
        flat = self._torch.frombuffer(raw, dtype=like.dtype)
        return flat.as_strided(like.size(), like.stride())

    def store(self, device_tensor: Any, cpu_tensor: Any, mark: int = TRUE_VALUE) -> None:
        """Gives a device tensor the values of a CPU tensor of the same size."""
        if device_tensor.size() != cpu_tensor.size() or math.prod(device_tensor.size()) == 0:
            return
        raw = self.read(device_tensor)[0] or bytearray(self.span(device_tensor))
        self.view(raw, device_tensor).copy_(cpu_tensor)
        self._write(device_tensor.data_ptr(), raw, mark)
