"""The work of a step: for each operation the floating-point operations, the bytes it moves, and the
module it is done for. Switched on by the variable WORK, for `ullage fit`.

Each operation of the dispatcher is seen below autograd, so that backward's and the recomputation of
checkpoints are counted as they come; of a custom operation that is written in Python, what it does
inside. While it watches, PyTorch takes some other paths (gradients
are summed out of place), so that what is allocated is taken from a run without it. Compiled
functions run eagerly.

Source of the operations: torch.utils.flop_counter, the formulas that FlopCounterMode has.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ullage.record.one_rank.collectives import is_collective, sent_bytes
from ullage.record.owners.module_trees import class_name
from ullage.record.owners.modules import Modules
from ullage.record.session import library
from ullage.record.session.phases import Phases

if TYPE_CHECKING:
    from ullage.trace.record_schema import WorkFields

# They give out memory or another view of it, and launch nothing.
_FREE = frozenset(
    f"aten::{name}"
    for name in (
        "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view",
        "_reshape_alias", "lift_fresh", "set_", "resize_", "record_stream", "is_pinned",
    )
)  # fmt: skip
# They read of their first tensor as much as they write.
_LOOK_UP = frozenset(
    f"aten::{name}" for name in ("embedding", "index_select", "gather", "index", "take")
)
# Tensors that one kernel of the foreach operations takes, and chunks of 65,536 elements.
# Source: depth_to_max_tensors and depth_to_max_blocks in ATen/native/cuda/MultiTensorApply.cuh.
_FOREACH_TENSORS, _FOREACH_BLOCKS, _FOREACH_CHUNK = 36, 320, 65536


class Work:
    """The work of the last whole step, by module and part of the step; one for the process."""

    def __init__(self, torch: ModuleType, modules: Modules, phases: Phases) -> None:
        self._torch = torch
        self._modules = modules
        self._phases = phases
        self._rows: Counter[tuple[Any, ...]] = Counter()
        self._last: list[list[Any]] = []
        self._tree: list[list[Any]] = []
        self._formulas: dict[Any, Any] = {}
        self._is_free: dict[Any, bool] = {}
        self._is_open: dict[Any, bool] = {}
        self._is_made_of: dict[Any, bool] = {}
        self._num_noted = 0
        self._mode: Any = None
        self._waiting: Any = None

    def install(self) -> None:
        """Watches every operation from the first call of a module on, or the end of the first step,
        until the process ends.

        What comes before, the building of a model, belongs to no step, and would not be put off
        (weights.py) while it is watched.
        """
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils.flop_counter import flop_registry

        self._formulas = flop_registry
        watch = self._watch

        class Watch(TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                return watch(func, args, kwargs or {})

        self._mode = Watch()

        register = self._torch.nn.modules.module.register_module_forward_pre_hook
        self._waiting = register(lambda _module, _arguments: self._begin())

    def _begin(self) -> None:
        if self._waiting is not None:
            self._waiting.remove()
            self._waiting = None
            self._mode.__enter__()

    def end_step(self) -> None:
        """A step has ended: it is the last whole one."""
        self._begin()
        self._last = [[*key, count] for key, count in self._rows.items()]
        self._rows.clear()
        if not self._tree:
            self._tree = list(self._describe())

    def document(self) -> WorkFields:
        """rows: [scope, part, operation, precision, flops, bytes, link bytes, bytes sent to other
        ranks, bytes in the host's memory, launches, count];
        tree: [scope, class, class of what holds it, parameters, children].
        """
        return {"rows": self._last, "tree": self._tree}

    def _describe(self) -> Iterator[list[Any]]:
        held_by: dict[int, str] = {}
        for number, module in self._modules.live():
            children = list(module.children())
            held_by |= {id(child): class_name(module) for child in children}
            count = sum(parameter.numel() for parameter in module.parameters())
            holder = held_by.get(id(module), "")
            yield [number, class_name(module), holder, count, len(children)]

    def _watch(self, function: Any, args: Any, kwargs: Any) -> Any:
        is_open, before = self._opens(function), self._num_noted
        if self._comes_apart(function):
            with self._mode:
                return function.decompose(*args, **kwargs)
        result = function(*args, **kwargs)
        if not is_open or self._num_noted == before:
            self._note(function, args, kwargs, result)
        return result

    def _comes_apart(self, function: Any) -> bool:
        """Whether a function is made of others, which are what is counted. Above autograd it has
        come apart already; within a custom operation or inference mode it has not.
        """
        known = self._is_made_of.get(function)
        if known is None:
            has_kernel = self._torch._C._dispatch_has_kernel_for_dispatch_key
            composite = has_kernel(function.name(), "CompositeImplicitAutograd")
            has_formula = function._overloadpacket in self._formulas
            known = self._is_made_of[function] = composite and not has_formula
        return known

    def _opens(self, function: Any) -> bool:
        """Whether what a function does inside is seen: a custom operation's kernels in Python,
        which the dispatcher would run unseen, are watched from here on.
        """
        known = self._is_open.get(function)
        if known is None:
            definitions = getattr(self._torch._library.custom_ops, "OPDEFS", {})
            definition = definitions.get(function._schema.name)
            kernels = getattr(definition, "_backend_fns", {})
            for device, kernel in list(kernels.items()):
                kernels[device] = self._seen(kernel)
            known = self._is_open[function] = bool(kernels)
        return known

    def _seen(self, kernel: Any) -> Any:
        @functools.wraps(kernel)
        def run(*arguments: Any, **kwargs: Any) -> Any:
            with self._mode:
                return kernel(*arguments, **kwargs)

        return run

    def _note(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        if self._free(function):
            return
        read = list(_tensors(args)) + list(_tensors(kwargs.values()))
        written = list(_tensors((result,)))
        is_on_device = any(tensor.is_cuda for tensor in (*written, *read))
        if not is_on_device and self._phases.part != "optimizer":
            return
        name = function._schema.name
        flops = self._flops(function, args, kwargs, result)
        num_bytes, link_bytes = _bytes(name, read, written)
        sent, on_host = 0, 0
        if is_collective(name):
            sent = sent_bytes(self._torch, name, (*args, *kwargs.values()), result)
        elif not is_on_device:
            on_host = sum(_size(tensor) for tensor in (*read, *written) if tensor.dim())
        launches = _launches(read) if "_foreach_" in name or "_fused_" in name else 1
        precision = self._precision(read)
        key = (library.current_scope(), self._phases.part, name, precision, flops, num_bytes)
        self._rows[*key, link_bytes, sent, on_host, launches if is_on_device else 0] += 1
        self._num_noted += 1

    def _free(self, function: Any) -> bool:
        """Whether a function launches nothing: it gives another view of what there is."""
        known = self._is_free.get(function)
        if known is None:
            schema = function._schema
            views = any(
                output.alias_info is not None and not output.alias_info.is_write
                for output in schema.returns
            )
            known = self._is_free[function] = views or schema.name in _FREE
        return known

    def _flops(self, function: Any, args: Any, kwargs: Any, result: Any) -> int:
        formula = self._formulas.get(function._overloadpacket)
        return 0 if formula is None else int(formula(*args, **kwargs, out_val=result))

    def _precision(self, read: list[Any]) -> str:
        """What the tensor cores would be given: the type of the first tensor of numbers."""
        torch = self._torch
        of = next((tensor.dtype for tensor in read if tensor.is_floating_point()), torch.float32)
        if of is torch.float32:
            return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "fp32"
        return str(of).removeprefix("torch.")


def _tensors(values: Any) -> Iterator[Any]:
    """The tensors among arguments, those in lists too."""
    for value in values:
        if hasattr(value, "untyped_storage"):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _bytes(name: str, read: list[Any], written: list[Any]) -> tuple[int, int]:
    """What an operation moves in the device's memory, and over the link to the host. What is
    broadcast is read once.
    """
    if name in _LOOK_UP:
        moved = [*read[1:], *written, *written]
    elif name == "aten::copy_":
        moved = read
    else:
        moved = [*read, *written]
    if name in {"aten::copy_", "aten::_to_copy"}:
        crossing = max(
            (_size(tensor) for tensor in moved if not tensor.is_cuda and tensor.dim()), default=0
        )
        if crossing:
            return int(crossing), int(crossing)
    on_device = [tensor for tensor in moved if tensor.is_cuda]
    return sum(
        min(_size(tensor), int(tensor.untyped_storage().nbytes())) for tensor in on_device
    ), 0


def _size(tensor: Any) -> int:
    return int(tensor.numel()) * int(tensor.element_size())


def _launches(read: list[Any]) -> int:
    """Kernels of an operation over a list of tensors."""
    lists = [tensor for tensor in read if tensor.dim()] or read
    chunks = sum(math.ceil(tensor.numel() / _FOREACH_CHUNK) for tensor in lists)
    by_tensors, by_chunks = len(lists) / _FOREACH_TENSORS, chunks / _FOREACH_BLOCKS
    return int(max(1, math.ceil(by_tensors), math.ceil(by_chunks)))
