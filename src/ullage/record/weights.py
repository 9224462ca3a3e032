"""Random initialisation that nobody reads.

A model is built on the CPU, filled with random numbers, and moved to a GPU that is not there: the
numbers go nowhere, and pages that nobody touches take no host memory. So filling a large CPU tensor
is put off. What would have been done is noted, the random generator goes on as if it had been done,
and it is done, with the very numbers that the program would have got, when anything reads the
tensor. What nobody read by the end is counted and stands in the report.

How a read is noticed: while something is put off, every operation of the thread is seen at a
dispatch key that torch keeps free for tests. Copies to a device read nothing that is kept; a few
operations are put off as well, behind the fill that they follow; all else is a read. The methods
that reach a tensor's bytes without an operation are covered for as long.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ullage.record import library
from ullage.record.recipes import Recipe, Recipes, Step, view_of

MIN_BYTES = 1 << 20
"""No more than this is filled: the phantom keeps such values on the device too
(KEPT_PER_BLOCK in csrc/values.c), and small values may steer a program."""

_KEY = "TESTING_ONLY_GenericWrapper"
_LOOKS = """
alias as_strided detach detach_ diagonal empty_like expand lift_fresh new_empty new_empty_strided
new_full new_ones new_zeros ones_like permute rand_like randn_like _reshape_alias select set_
set_data slice split split_with_sizes squeeze t transpose unbind unfold unsqueeze _unsafe_view view
zeros_like full_like
"""
"""Operations that read no value: another look at the same bytes, or another tensor's shape."""
_CHANGES = "add_ clamp_ clamp_max_ clamp_min_ div_ erfinv_ fill_ mul_ neg_ sub_ zero_"
"""Operations that initialise with: with numbers as their other arguments they follow a fill."""
_OPENINGS = ("numpy", "data_ptr", "untyped_storage", "tolist", "__dlpack__")
"""Methods that reach a tensor's bytes without an operation."""
_CALLS_PER_SWEEP = 256
_REACH = 9.0
"""No number of a normal distribution is so many deviations from its mean: they are made of uniform
numbers of at most 53 bits, and (-2 log 2**-53) ** 0.5 is 8.6."""


class _PutOff:
    """What was put off of one storage; the reference does not keep the storage."""

    def __init__(self, reference: Any, *, is_whole: bool) -> None:
        self.reference = reference
        self.is_whole = is_whole  # no byte of it is what it was before
        self.steps: tuple[Step, ...] = ()


class SkippedWeights:
    """Puts fills off, and does them when they are read."""

    def __init__(self, torch: ModuleType, *, is_on: bool) -> None:
        self._torch = torch
        aten = torch.ops.aten
        random = (aten.normal_.default, aten.uniform_.default)
        self.fills: frozenset[Any] = frozenset(random if is_on else ())
        self._changes = frozenset(
            getattr(getattr(aten, name), overload)
            for name in _CHANGES.split()
            for overload in getattr(aten, name).overloads()
        )
        self._copy, self._clone, self._convert = (
            *(aten.copy_.default, aten.clone.default, aten._to_copy.default),
        )
        self._normal, self._bounds = aten.normal_.default, (aten.lt.Scalar, aten.gt.Scalar)
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._floats = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
        self._include = getattr(torch._C, "_dispatch_tls_set_dispatch_key_included", None)
        self._storage_of = torch._C.TensorBase.untyped_storage
        self._seen: Any = None
        self._fallback: Any = None
        self._libraries: dict[str, Any] = {}
        self._whole: set[Any] = set()
        self._storages: dict[int, _PutOff] = {}
        self._covered: dict[str, Any] = {}
        self._num_calls = 0
        self._recipes = Recipes(torch)
        self.count = 0
        self.bytes = 0

    # ---- Putting off -----------------------------------------------------------------------------

    def put_off(self, op: Any, args: Any, kwargs: Any) -> bool:
        """Puts a random fill off, if it can be; False: it is to be done."""
        tensor = args[0]
        if self._recipes.is_busy or not self._can_wait(tensor) or kwargs.keys() - {"generator"}:
            return False
        torch = self._torch
        generator = kwargs.get("generator") or torch.default_generator
        draws = self._recipes.num_draws(op, tensor)
        if draws is None:
            return False
        # Nothing is drawn, but the arguments are judged: a negative deviation is an error.
        op(torch.empty(0, dtype=tensor.dtype, device="cpu"), *args[1:])
        state = generator.get_state()
        before = self._recipes.states.keep(state)
        library.skip_random(state.data_ptr(), draws)
        generator.set_state(state)
        step = Step(op, view_of(tensor), tuple(args[1:]), generator_state=before)
        if self._is_whole_storage(tensor):
            self._drop(self._storage_of(tensor))
        self._note(tensor, step)
        self._count(step, 1)
        return True

    def _can_wait(self, tensor: Any) -> bool:
        """Whether a tensor's bytes are ordinary memory that only torch can reach."""
        torch = self._torch
        if not tensor.is_cpu or tensor.numel() * tensor.element_size() <= MIN_BYTES:
            return False
        if type(tensor) not in self._plain or torch._C._functorch.is_functorch_wrapped_tensor(
            tensor
        ):
            return False
        if tensor.dtype not in self._floats or not tensor.is_contiguous():
            return False
        if self._has_graph(tensor):
            return False  # torch's own error, or a node of the graph
        storage = self._storage_of(tensor)
        # Memory of numpy, of a file, or shared with another process is not for torch alone.
        return bool(storage.resizable() and not storage.is_shared())

    def _note(self, tensor: Any, step: Step) -> None:
        storage = self._storage_of(tensor)
        held = self._storages.get(storage._cdata)
        if held is None:
            reference = self._torch.multiprocessing.reductions.StorageWeakRef(storage)
            held = self._storages[storage._cdata] = _PutOff(
                reference, is_whole=self._is_whole_storage(tensor)
            )
        held.steps += (step,)
        library.host_filled(
            self._torch._C.TensorBase.data_ptr(tensor), tensor.numel() * tensor.element_size()
        )
        # Not within a factory such as randn, which keeps its filling from autograd.
        is_hidden = self._torch._C._dispatch_tls_is_dispatch_key_excluded("ADInplaceOrView")
        if not tensor.is_inference() and not is_hidden:
            self._torch.autograd.graph.increment_version(tensor)
        self._cover()

    def _is_whole_storage(self, tensor: Any) -> bool:
        num_bytes = tensor.numel() * tensor.element_size()
        return bool(tensor.is_contiguous() and self._storage_of(tensor).nbytes() == num_bytes)

    def _count(self, step: Step, sign: int) -> None:
        """Fills that were left out, and their bytes."""
        if step.generator_state is not None:
            elements = functools.reduce(lambda a, b: a * b, step.view.size, 1)
            self.count += sign
            self.bytes += sign * elements * step.view.dtype.itemsize

    # ---- Doing what was put off ------------------------------------------------------------------

    def read(self, tensor: Any) -> None:
        """Does what was put off of a tensor's storage."""
        if self._find(tensor) is not None:
            self._do(self._storage_of(tensor))

    def _drop(self, storage: Any) -> None:
        """Forgets what was put off of a storage: it is about to be done, or overwritten."""
        held = self._storages.pop(storage._cdata, None)
        for step in held.steps if held is not None else ():
            self._count(step, -1)
        self._sweep()

    def read_everything(self) -> None:
        """Does all that was put off and can still be read."""
        storage_type = self._torch.UntypedStorage
        for held in list(self._storages.values()):
            if not held.reference.expired():
                self._do(storage_type._new_with_weak_ptr(held.reference.cdata))

    def _do(self, storage: Any) -> None:
        steps = self._storages[storage._cdata].steps
        self._drop(storage)
        self._recipes.follow(storage, steps)

    # ---- Seeing reads ----------------------------------------------------------------------------

    def _see(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """Every operation while something is put off."""
        if op not in self._whole:
            if self._comes_apart(op):
                self._library_of(op).impl(op, self._torch.library.fallthrough_kernel, _KEY)
                return op(*args, **kwargs)
            self._whole.add(op)
        self._num_calls += 1
        if self._num_calls % _CALLS_PER_SWEEP == 0:
            self._sweep()
        held = [] if self._recipes.is_busy else list(self._held_among((*args, *kwargs.values())))
        if held:
            made = self._follow(op, args, kwargs, held)
            if made is not None:
                return made
        return self._unseen(op, args, kwargs)

    def _unseen(self, op: Any, args: Any, kwargs: Any) -> Any:
        self._include(_KEY, False)  # type: ignore[misc]  # noqa: FBT003
        try:
            return op(*args, **kwargs)
        finally:
            # Another thread may have uncovered everything, and has not this one's keys.
            self._include(_KEY, bool(self._covered))  # type: ignore[misc]

    def _library_of(self, op: Any) -> Any:
        """What kernels of an operation are registered through: its namespace's own."""
        if op.namespace not in self._libraries:
            self._libraries[op.namespace] = self._torch.library.Library(op.namespace, "IMPL")
        return self._libraries[op.namespace]

    def _comes_apart(self, op: Any) -> bool:
        """Whether an operation is made of others, which are then seen one by one."""
        has, name = self._torch._C._dispatch_has_kernel_for_dispatch_key, op.name()
        return has(name, "CompositeImplicitAutograd") and not has(name, "CPU")

    def _held_among(self, args: Any) -> Iterator[Any]:
        """The tensors of which something is put off; all of it is done where one of the tensors is
        made of others, which nobody else will see.
        """
        for arg in args:
            if isinstance(arg, (list, tuple)):
                yield from self._held_among(arg)
            elif isinstance(arg, self._torch.Tensor) and arg.is_cpu:
                if self._is_wrapper(arg):
                    self.read_everything()
                elif self._find(arg) is not None:
                    yield arg

    def _is_wrapper(self, tensor: Any) -> bool:
        if self._torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return True
        kind = type(tensor)
        return kind not in self._plain and (
            getattr(kind, "__torch_dispatch__", None) is not self._torch.Tensor.__torch_dispatch__
        )

    def _find(self, tensor: Any) -> _PutOff | None:
        try:
            return self._storages.get(self._storage_of(tensor)._cdata)
        except (RuntimeError, NotImplementedError):  # a subclass without storage of its own
            return None

    def _follow(self, op: Any, args: Any, kwargs: Any, held: list[Any]) -> Any:
        """Decides about an operation on tensors with something put off; its result, or None where
        it is to be done now.
        """
        tensor = held[0]
        if op in (self._convert, self._clone) and self._is_copy_put_off(tensor, kwargs):
            return self._put_off_copy(tensor, kwargs)
        if op is self._copy and tensor is args[0] and self._is_whole_storage(tensor):
            self._drop(self._storage_of(tensor))  # all of it is overwritten
            held = [other for other in held if self._find(other) is not None]
        elif op in self._bounds and self._is_within(op, args):
            return self._torch.zeros(tensor.size(), dtype=self._torch.bool, device="cpu")
        elif op in self._changes and self._is_change_put_off(tensor, args, kwargs):
            self._note(tensor, Step(op, view_of(tensor), tuple(args[1:])))
            return tensor
        for other in held:
            if not self._goes_to_a_device(op, args, kwargs, other):
                self.read(other)
        return self._convert_nothing(op, args, kwargs)

    def _goes_to_a_device(self, op: Any, args: Any, kwargs: Any, tensor: Any) -> bool:
        """Whether an operation copies a tensor where values of that size are not kept."""
        target = self._target(op, args, kwargs)
        if target is None or tensor is not args[int(op is self._copy)]:
            return False
        device, dtype = target
        num_elements = args[0].numel()
        is_kept = num_elements * dtype.itemsize <= MIN_BYTES
        return device.type == "meta" or (device.type == "cuda" and not is_kept)

    def _target(self, op: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """The device and the type that an operation copies to; None: it does not."""
        if op is self._copy:
            return args[0].device, args[0].dtype
        if op is self._convert and kwargs.get("device") is not None:
            return kwargs["device"], kwargs.get("dtype") or args[0].dtype
        return None

    def _convert_nothing(self, op: Any, args: Any, kwargs: Any) -> Any:
        """A copy to a device that would first convert on the CPU what was put off: the copy of
        something that has the type already. None: it is not one.
        """
        target, position = self._target(op, args, kwargs), int(op is self._copy)
        if target is None or self._find(args[position]) is None:
            return None
        source, dtype = args[position], target[1]
        is_async = kwargs.get("non_blocking") or (op is self._copy and len(args) > 2 and args[2])
        if dtype is source.dtype or is_async or self._has_graph(source):
            return None
        like = self._torch.empty_like(source, dtype=dtype)
        return self._unseen(op, (*args[:position], like, *args[position + 1 :]), kwargs)

    def _is_copy_put_off(self, tensor: Any, kwargs: Any) -> bool:
        device, dtype = kwargs.get("device"), kwargs.get("dtype") or tensor.dtype
        keeps = kwargs.get("memory_format") in (None, self._torch.preserve_format)
        return bool(
            self._storages[self._storage_of(tensor)._cdata].is_whole
            and (device is None or device.type == "cpu")
            and keeps
            and not kwargs.get("pin_memory")
            and dtype in self._floats
            and tensor.dtype in self._floats
            and tensor.numel() * dtype.itemsize > MIN_BYTES
            and not self._has_graph(tensor)
        )

    def _has_graph(self, tensor: Any) -> bool:
        return bool(tensor.requires_grad and self._torch.is_grad_enabled())

    def _put_off_copy(self, tensor: Any, kwargs: Any) -> Any:
        held, storage = self._storages[self._storage_of(tensor)._cdata], self._storage_of(tensor)
        source = Recipe(storage.nbytes(), held.steps, view_of(tensor))
        copy = self._torch.empty_like(tensor, dtype=kwargs.get("dtype"))
        self._note(copy, Step(self._copy, view_of(copy), source=source))
        return copy

    def _is_change_put_off(self, tensor: Any, args: Any, kwargs: Any) -> bool:
        if tensor is not args[0] or kwargs or tensor.is_conj() or self._has_graph(tensor):
            return False
        return all(arg is None or isinstance(arg, (bool, int, float)) for arg in args[1:])

    def _is_within(self, op: Any, args: Any) -> bool:
        """Whether no number of a normal fill can be below, or above, a bound (trunc_normal_)."""
        tensor, bound = args
        steps = self._storages[self._storage_of(tensor)._cdata].steps
        if len(steps) > 1 or steps[0].op is not self._normal or steps[0].view != view_of(tensor):
            return False
        given: tuple[float, ...] = steps[0].args
        mean, deviation = given + (0.0, 1.0)[len(given) :]
        away = (mean - bound) if op is self._bounds[0] else (bound - mean)
        return bool(away >= _REACH * deviation)

    # ---- Covering what could read ----------------------------------------------------------------

    def _cover(self) -> None:
        """Sees every operation of this thread, and every method that reaches a tensor's bytes."""
        if self._covered:
            return
        if self._seen is None:
            library_type = self._torch.library.Library
            looks = self._torch.library.fallthrough_kernel
            self._fallback = library_type("_", "IMPL")
            self._fallback.fallback(self._see, _KEY)
            self._seen = library_type("aten", "IMPL")
            for name in _LOOKS.split():
                packet = getattr(self._torch.ops.aten, name)
                for overload in packet.overloads():
                    self._seen.impl(getattr(packet, overload), looks, _KEY)
        tensor_type = self._torch.Tensor
        for name in _OPENINGS:
            self._covered[name] = tensor_type.__dict__.get(name)
            setattr(tensor_type, name, self._reading_first(getattr(tensor_type, name)))
        self._include(_KEY, True)  # type: ignore[misc]  # noqa: FBT003

    def _reading_first(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def read_first(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._recipes.is_busy:
                self.read(tensor)
            return method(tensor, *args, **kwargs)

        return read_first

    def _sweep(self) -> None:
        """Forgets storages that are gone; with the last of them all is as it was."""
        gone = [key for key, held in self._storages.items() if held.reference.expired()]
        for key in gone:
            del self._storages[key]
        if self._storages or not self._covered:
            return
        for name, own in self._covered.items():
            if own is None:
                delattr(self._torch.Tensor, name)
            else:
                setattr(self._torch.Tensor, name, own)
        self._covered.clear()
        self._include(_KEY, False)  # type: ignore[misc]  # noqa: FBT003
