"""Skips initialisation of large CPU tensors until something reads them.

A program builds a model on the CPU, fills it with random numbers, and moves it to the phantom GPU.
Nothing uses these numbers there, and untouched pages take no host memory. So the fill of a large
CPU tensor is deferred: it is recorded, and the random generator advances as if it had been
executed. When something reads the tensor, the fill is executed and gives exactly the numbers of a
real run. Copies, conversions and scaling of deferred tensors are deferred, too. The report counts
the fills that nothing read until the end.

Zeros need no record, because untouched memory is zero. A tensor is zeroed by returning its pages to
the kernel, and a copy of a tensor without pages is another such tensor.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ullage.log.assumptions import Assumption, AssumptionKind
from ullage.players.inside import library, torch_internals
from ullage.players.inside.part import Part
from ullage.players.inside.patches import Patches
from ullage.players.inside.weights.deferred_storage import Held
from ullage.players.inside.weights.dispatch_hook import Cover
from ullage.players.inside.weights.recipes import Step, view_of

MIN_BYTES = 1 << 20
"""Fills of up to this size are executed at once: the phantom keeps such values on the device, too
(KEPT_PER_BLOCK in csrc/machine/values.c), and programs may branch on small values."""

_CHANGES = "add_ clamp_ clamp_max_ clamp_min_ div_ erfinv_ fill_ mul_ neg_ sub_ zero_"
"""In-place operations of initialisation; with numbers as arguments they are deferred, too."""
_COMPUTED = "add div mul neg sub"
"""Operations that equal a copy and one of the changes above."""
_FACTORIES = "zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full"
_CALLS_PER_SWEEP = 256
_REACH = 9.0
"""No number of a normal distribution is this many deviations from its mean: torch makes them from
uniform numbers of at most 53 bits, and (-2 log 2**-53) ** 0.5 is 8.6."""


class SkippedWeights(Part):
    """Decides which fills and copies are deferred.

    Attributes:
        held: the deferred operations.
        ops: the operations that can be deferred.
        is_made_up: whether an address is in a dummy file of weights.
        is_over: whether nothing more is deferred.
    """

    def __init__(self, torch: ModuleType, *, is_on: bool) -> None:
        self._torch = torch
        self._cover = Cover(
            torch,
            follow=self._follow,
            read=lambda tensor: self.held.read(tensor),
            read_everything=lambda: self.held.read_everything(),
        )
        self.held = Held(torch, on_first=self._cover.turn_on, on_none=self._cover.turn_off)
        self.is_made_up: Callable[[int], bool] = lambda _address: False
        self._name_operations(torch.ops.aten)
        self._starts = self._starting(torch.ops.aten) if is_on else {}
        self.ops = frozenset(self._starts)
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._floats = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
        narrow = (getattr(torch, name, None) for name in ("float8_e4m3fn", "float8_e5m2"))
        self._copied = {*self._floats, *filter(None, narrow)}
        self._storage_of = torch._C.TensorBase.untyped_storage
        self._address_of = torch._C.TensorBase.data_ptr
        asked = torch_internals.find(torch, "torch._C._autograd._profiler_enabled")
        self._is_profiled: Callable[[], bool] = asked or bool
        self.is_over, self._num_calls = False, 0

    def _name_operations(self, aten: Any) -> None:
        self._changes = frozenset(
            getattr(getattr(aten, name), overload)
            for name in _CHANGES.split()
            for overload in getattr(aten, name).overloads()
        )
        self._computed = {
            getattr(getattr(aten, name), overload): getattr(getattr(aten, f"{name}_"), overload)
            for name in _COMPUTED.split()
            for overload in getattr(aten, f"{name}_").overloads()
            if overload in getattr(aten, name).overloads()
        }
        self._copy, self._convert = aten.copy_.default, aten._to_copy.default
        self._zero, self._fill = aten.zero_.default, aten.fill_.Scalar
        self._normal, self._bounds = aten.normal_.default, (aten.lt.Scalar, aten.gt.Scalar)

    def _starting(self, aten: Any) -> dict[Any, Callable[[Any, Any, Any], Any]]:
        """The function that handles each operation."""
        starts = {
            aten.normal_.default: self._fill_random,
            aten.uniform_.default: self._fill_random,
            aten.zero_.default: self._fill_number,
            aten.fill_.Scalar: self._fill_number,
            aten.clone.default: self._copy_new,
            aten._to_copy.default: self._copy_new,
            aten.copy_.default: self._copy_over,
            aten.cat.default: self._join,
        }
        pin = getattr(aten, "_pin_memory", None)
        for packet in [pin] if pin is not None else []:
            starts |= {getattr(packet, name): self._pin for name in packet.overloads()}
        return starts | {getattr(aten, name).default: self._make for name in _FACTORIES.split()}

    def install(self, _patches: Patches) -> None:
        """Starts the interception of operations."""
        if self.ops:
            self._cover.watch()
            os.register_at_fork(after_in_child=self.held.begin_in_child)

    def remove(self) -> None:
        """Defers nothing more."""
        self.is_over = True

    def leave(self) -> None:
        """A forked process goes on unchanged."""

    def fields(self) -> dict[str, Any]:
        """The fills that nothing has read."""
        what = "random initialisation of weights on the CPU left out"
        left_out = Assumption(AssumptionKind.WEIGHTS, what, count=self.held.count)
        return {"basis": [left_out.row()] if left_out.count else []}

    def settle(self, *, is_reading: bool) -> None:
        """Intercepts operations only while something is deferred, from now on. `is_reading`: first
        executes everything, because torch runs no fallback while it traces.
        """
        self.held.sweep()
        if is_reading:
            self.held.read_everything()
        self._cover.settle()

    def put_off(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Defers an operation and returns its result; None: it is not, as while a profile looks."""
        is_over = self.is_over or self.held.recipes.is_busy or self._is_profiled()
        return None if is_over or op not in self._starts else self._starts[op](op, args, kwargs)

    def _fill_random(self, op: Any, args: Any, kwargs: Any) -> Any:
        tensor, recipes, torch = args[0], self.held.recipes, self._torch
        if not self._can_wait(tensor) or kwargs.keys() - {"generator"}:
            return None
        generator = kwargs.get("generator") or torch.default_generator
        draws = recipes.num_draws(op, tensor)
        if draws is None:
            return None
        # Draws nothing but checks the arguments: a negative deviation is an error.
        op(torch.empty(0, dtype=tensor.dtype, device="cpu"), *args[1:])
        state = generator.get_state()
        before = recipes.states.keep(state)
        library.skip_random(state.data_ptr(), draws)
        generator.set_state(state)
        step = Step(op, view_of(tensor), tuple(args[1:]), generator_state=before)
        return self._overwrite(tensor, step)

    def _fill_number(self, op: Any, args: Any, kwargs: Any) -> Any:
        tensor, value = args[0], (args[1] if len(args) > 1 else 0)
        if kwargs or not isinstance(value, (bool, int, float)):
            return None
        step = Step(op, view_of(tensor), tuple(args[1:])) if self._is_large(tensor) else None
        if step is None or not self._can_wait(tensor, is_any_dtype=step.is_zero):
            return None
        return self._overwrite(tensor, step)

    def _make(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Defers zeros, ones and full, with a size or like another tensor."""
        like = args[0] if isinstance(args[0], self._torch.Tensor) else None
        device = kwargs.get("device") or (like.device if like is not None else None)
        is_strided = kwargs.get("layout") in (None, self._torch.strided)
        if (device is not None and device.type != "cpu") or not is_strided:
            return None
        name = op.name()
        is_like = name.endswith("_like")
        size = like.size() if is_like else args[int(like is not None)]  # type: ignore[union-attr]
        if math.prod(size) * 8 <= MIN_BYTES or (like is not None and type(like) not in self._plain):
            return None
        value = 0 if "zeros" in name else 1 if "ones" in name else args[-1]
        options = {key: value for key, value in kwargs.items() if value is not None}
        if is_like:
            result = self._torch.empty_like(like, requires_grad=False, **options)
        else:
            at = int(like is not None)
            kind = op(*args[:at], [0], *args[at + 1 :], **options)
            result = self._torch.empty(size, **{**options, "dtype": kind.dtype, "device": "cpu"})
        step = Step(self._fill, view_of(result), (value,))
        is_number = isinstance(value, (bool, int, float))
        if is_number and self._can_wait(result, is_any_dtype=step.is_zero):
            return self._overwrite(result, step, is_new=True)
        return None

    def _copy_new(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Defers clones and conversions, including conversions on the way to a device."""
        tensor, device = args[0], kwargs.get("device")
        if not self._is_large(tensor):
            return None
        if device is not None and device.type != "cpu":
            return self._convert_nothing(op, args, kwargs)
        dtype, layout = kwargs.get("dtype") or tensor.dtype, kwargs.get("memory_format")
        step = None if kwargs.get("pin_memory") else self._copying(tensor, dtype)
        if step is None or tensor.numel() * dtype.itemsize <= MIN_BYTES:
            return None
        options = {"memory_format": layout} if layout is not None else {}
        copy = self._torch.empty_like(tensor, dtype=dtype, **options)
        return self._overwrite(copy, step(copy), is_new=True)

    def _copy_over(self, op: Any, args: Any, kwargs: Any) -> Any:
        target, source = args[:2]
        if not self._is_large(source):
            return None
        if not target.is_cpu:
            return self._convert_nothing(op, args, kwargs)
        if source.size() != target.size() or not self._can_wait(target, is_any_dtype=True):
            return None
        is_same = self._storage_of(source)._cdata == self._storage_of(target)._cdata
        step = None if is_same else self._copying(source, target.dtype)
        return None if step is None else self._overwrite(target, step(target))

    def _pin(self, _op: Any, args: Any, _kwargs: Any) -> Any:
        tensor = args[0]
        is_plain = self._is_large(tensor) and tensor.is_contiguous()
        step = self._copying(tensor, tensor.dtype) if is_plain else None
        if step is None:
            return None
        pinned = self._torch.empty(tensor.size(), dtype=tensor.dtype, pin_memory=True)
        if not self._can_wait(pinned, is_any_dtype=True):
            return None
        return self._overwrite(pinned, step(pinned), is_new=True)

    def _join(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Defers cat as a copy to each part of the new tensor."""
        parts, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0)
        is_alike = len({(part.dtype, part.dim()) for part in parts}) == 1
        if not is_alike or not all(map(self._is_large, parts)):
            return None
        steps = [self._copying(part, part.dtype) for part in parts]
        if None in steps:
            return None
        size = op([self._torch.empty_like(part, device="meta") for part in parts], dim).size()
        result = self._torch.empty(size, dtype=parts[0].dtype, device="cpu")
        views = result.split([part.size(dim) for part in parts], dim)
        for step, view in zip(steps, views, strict=True):
            if step is not None:
                self.held.note(view, step(view), is_new=True)
        return result

    def _overwrite(self, tensor: Any, step: Step, *, is_new: bool = False) -> Any:
        self.held.overwrite(tensor, step, is_new=is_new)
        if not is_new:
            self._raise_version(tensor)
        return tensor

    def _raise_version(self, tensor: Any) -> None:
        # A factory such as randn hides its fill from autograd.
        is_hidden = self._torch._C._dispatch_tls_is_dispatch_key_excluded("ADInplaceOrView")
        if not tensor.is_inference() and not is_hidden:
            self._torch.autograd.graph.increment_version(tensor)

    def _is_large(self, tensor: Any) -> bool:
        if not isinstance(tensor, self._torch.Tensor):  # a number instead of a tensor
            return False
        return bool(tensor.is_cpu and tensor.numel() * tensor.element_size() > MIN_BYTES)

    def _is_ordinary(self, tensor: Any) -> bool:
        """True if only torch's own code accesses the tensor's bytes."""
        c = self._torch._C
        if type(tensor) not in self._plain or c._functorch.is_functorch_wrapped_tensor(tensor):
            return False
        # Torch runs no fallback under a mode. With a graph, autograd adds a node or raises.
        return not c._len_torch_dispatch_stack() and not self._has_graph(tensor)

    def _is_own(self, tensor: Any) -> bool:
        """True if torch allocated the memory; not numpy, a file or another process."""
        return bool((of := self._storage_of(tensor)).resizable() and not of.is_shared())

    def _has_graph(self, tensor: Any) -> bool:
        return bool(tensor.requires_grad and self._torch.is_grad_enabled())

    def _can_wait(self, tensor: Any, *, is_any_dtype: bool = False) -> bool:
        if not self._is_large(tensor) or not self._is_ordinary(tensor):
            return False
        is_right = is_any_dtype or tensor.dtype in self._floats
        return is_right and tensor.is_contiguous() and self._is_own(tensor)

    def _copying(self, source: Any, dtype: Any) -> Callable[[Any], Step] | None:
        """The step that copies a deferred or untouched tensor; None: the source must be read."""
        if not self._is_ordinary(source):
            return None
        if self.held.find(source) is None:
            is_nothing = not dtype.is_complex and self._is_nothing(source)
            return (lambda copy: Step(self._zero, view_of(copy))) if is_nothing else None
        recipe = self.held.recipe(source)
        if recipe is None or not {dtype, source.dtype} <= self._copied:
            return None
        return lambda copy: Step(self._copy, view_of(copy), source=recipe)

    def _is_nothing(self, tensor: Any) -> bool:
        """True if a tensor is zero because its pages were never written."""
        if not tensor.is_contiguous():
            return False
        address, size = self._address_of(tensor), tensor.numel() * tensor.element_size()
        is_file = self.is_made_up(address)
        if not is_file and not self._is_own(tensor):
            return False
        return bool(library.host_is_untouched(address, size, is_file))

    def _follow(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Handles any operation while something is deferred; returns its result, or None if it must
        run now.
        """
        self._num_calls += 1
        if self._num_calls % _CALLS_PER_SWEEP == 0:
            self.held.sweep()
        if (result := self.put_off(op, args, kwargs)) is not None:
            return result
        is_busy = self.held.recipes.is_busy
        tensors = [] if is_busy else list(self._held_among((*args, *kwargs.values())))
        return self._follow_held(op, args, kwargs, tensors) if tensors else None

    def _held_among(self, args: Any) -> Iterator[Any]:
        """Yields the deferred tensors among arguments. If an argument wraps other tensors, which
        cannot be seen here, everything is executed.
        """
        for arg in args:
            if isinstance(arg, (list, tuple)):
                yield from self._held_among(arg)
            elif isinstance(arg, self._torch.Tensor) and arg.is_cpu:
                if self._is_wrapper(arg):
                    self.held.read_everything()
                elif self.held.find(arg) is not None:
                    yield arg

    def _is_wrapper(self, tensor: Any) -> bool:
        if self._torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return True
        kind = type(tensor)
        return kind not in self._plain and (
            getattr(kind, "__torch_dispatch__", None) is not self._torch.Tensor.__torch_dispatch__
        )

    def _follow_held(self, op: Any, args: Any, kwargs: Any, tensors: list[Any]) -> Any:
        tensor, numbers = tensors[0], tuple(args[1:])
        if op is self._copy and tensor is args[0] and self.held.fills_storage(tensor):
            self.held.drop(self._storage_of(tensor))  # the copy overwrites all of it
            tensors = [other for other in tensors if self.held.find(other) is not None]
        elif op in self._bounds and self._is_within(op, args):
            result = self._torch.empty(tensor.size(), dtype=self._torch.bool, device="cpu")
            return self._overwrite(result, Step(self._zero, view_of(result)), is_new=True)
        elif op in self._changes and self._is_change(tensor, args, kwargs):
            self.held.note(tensor, Step(op, view_of(tensor), numbers))
            self._raise_version(tensor)
            return tensor
        elif op in self._computed and self._is_change(tensor, args, kwargs):
            step = self._copying(tensor, tensor.dtype) if tensor.dtype in self._floats else None
            if step is not None and self._is_large(tensor):
                copy = self._torch.empty_like(tensor)
                self.held.overwrite(copy, step(copy), is_new=True)
                self.held.note(copy, Step(self._computed[op], view_of(copy), numbers))
                return copy
        for other in tensors:
            if not self._goes_to_a_device(op, args, kwargs, other):
                self.held.read(other)
        return None

    def _is_change(self, tensor: Any, args: Any, kwargs: Any) -> bool:
        if tensor is not args[0] or kwargs or tensor.is_conj() or self._has_graph(tensor):
            return False
        return all(arg is None or isinstance(arg, (bool, int, float)) for arg in args[1:])

    def _goes_to_a_device(self, op: Any, args: Any, kwargs: Any, tensor: Any) -> bool:
        """True if an operation copies a tensor to a device that keeps no values of its size."""
        target = self._target(op, args, kwargs)
        if target is None or tensor is not args[int(op is self._copy)]:
            return False
        device, dtype = target
        is_kept = args[0].numel() * dtype.itemsize <= MIN_BYTES
        return device.type == "meta" or (device.type == "cuda" and not is_kept)

    def _target(self, op: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """The device and the type that an operation copies to; None: it is not a copy."""
        if op is self._copy:
            return args[0].device, args[0].dtype
        if op is self._convert and kwargs.get("device") is not None:
            return kwargs["device"], kwargs.get("dtype") or args[0].dtype
        return None

    def _convert_nothing(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Replaces a copy to a device that would first convert unread values on the CPU by the copy
        of an empty tensor of the new type. None: it is not such a copy.
        """
        position = int(op is self._copy)
        source, target = args[position], self._target(op, args, kwargs)
        if target is None or (dtype := target[1]) is source.dtype or not self._is_ordinary(source):
            return None
        is_async = kwargs.get("non_blocking") or (op is self._copy and len(args) > 2 and args[2])
        if is_async or args[0].numel() * dtype.itemsize <= MIN_BYTES:
            return None
        if self.held.find(source) is None and not self._is_nothing(source):
            return None
        like = self._torch.empty_like(source, dtype=dtype)
        return self._cover.unseen(op, (*args[:position], like, *args[position + 1 :]), kwargs)

    def _is_within(self, op: Any, args: Any) -> bool:
        """True if no number of a normal fill can be beyond a bound (trunc_normal_)."""
        tensor, bound = args
        put_off = self.held.find(tensor)
        steps = put_off.steps if put_off is not None else ()
        if len(steps) != 1 or steps[0].op is not self._normal or steps[0].view != view_of(tensor):
            return False
        values: tuple[float, ...] = steps[0].args
        mean, deviation = values + (0.0, 1.0)[len(values) :]
        away = (mean - bound) if op is self._bounds[0] else (bound - mean)
        return bool(away >= _REACH * deviation)
