"""Interprets small Triton kernels on the CPU in parallel with the phantom.

Inference engines keep their counts and positions on the device, update them in their own kernels,
and read them back. A kernel with few programs whose tensors all have integers is interpreted from
its source (triton_interpreter.py), with the bytes that the phantom knows. Results of known values
are known afterwards. For any other kernel, and for a library's own operations, ullage finds the
arguments that they write to; tensors that they only read stay known.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import inspect
import itertools
import math
import textwrap
import types
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ullage.players.inside import library
from ullage.players.inside.import_hooks import on_import
from ullage.players.inside.part import Part
from ullage.players.inside.patches import Patches
from ullage.players.inside.values.values import Values

# Finds the arguments that a Triton kernel may write to, from its source.

_HARMLESS = frozenset({"abs", "bool", "float", "int", "len", "max", "min", "print", "range"})
_LANGUAGE = "triton.language"


@functools.cache
def stored_parameters(function: Callable[..., Any]) -> frozenset[str] | None:
    """The parameters from which a function may compute an address that it stores to.

    Arguments of a call to a function that is not a kernel count, too. None: there is no source.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return None
    made_of: dict[str, set[str]] = {}
    stored: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in (name for target in targets for name in _names(target)):
                made_of.setdefault(name, set()).update(_names(node.value))
        elif isinstance(node, ast.For):
            for name in _names(node.target):
                made_of.setdefault(name, set()).update(_names(node.iter))
        elif isinstance(node, ast.Call):
            stored.update(_stored_by(node, function.__globals__))
    pending = list(stored)
    while pending:
        fresh = made_of.get(pending.pop(), set()) - stored
        stored |= fresh
        pending += fresh
    return frozenset(stored & set(inspect.signature(function).parameters))


def _stored_by(call: ast.Call, names: dict[str, Any]) -> Iterator[str]:
    function = call.func
    if isinstance(function, ast.Attribute):
        if function.attr in ("store", "scatter") or function.attr.startswith("atomic"):
            yield from _names(function.value)
            yield from _names(call.args[0] if call.args else call)
            return
        holder = names.get(function.value.id) if isinstance(function.value, ast.Name) else None
        if getattr(holder, "__name__", _LANGUAGE) == _LANGUAGE:  # or a method of a value
            return
    elif isinstance(function, ast.Name):
        if function.id in _HARMLESS:
            return
        inner: Any = getattr(names.get(function.id), "fn", None)
        stored = stored_parameters(inner) if inner is not None else None
        if stored is not None:
            arguments = dict(zip(inspect.signature(inner).parameters, call.args, strict=False))
            arguments |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
            for name in stored & arguments.keys():
                yield from _names(arguments[name])
            return
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        yield from _names(argument)


def _names(node: ast.AST | None) -> Iterator[str]:
    """The names in an expression, except those that it only loads a value from."""
    if isinstance(node, ast.Name):
        yield node.id
    elif node is not None and not _is_load(node):
        for child in ast.iter_child_nodes(node):
            yield from _names(child)


def _is_load(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "load"
    )


_TORCHS = frozenset({"aten", "prims", "prim", "c10d", "_c10d_functional", "profiler", "inductor"})
_MAX_PROGRAMS = 1024
_MAX_LANES = 1 << 20
_MAX_BYTES = 1 << 20  # the phantom keeps the bytes of blocks up to this size


class Kernels(Part):
    """Follows launches. One instance per process."""

    def __init__(self, torch: ModuleType, values: Values) -> None:
        self._torch = torch
        self._values = values
        self._only: dict[Any, Any] = {}
        names = ("bool", "uint8", "int8", "int16", "int32", "int64")
        self._elements = {getattr(torch, name): name for name in names}

    def install(self, _patches: Patches) -> None:
        """Starts; patches Triton when it is imported."""
        on_import("triton.runtime.jit", self._watch)
        packet_type = self._torch._ops.OpOverloadPacket
        call = packet_type.__call__

        @functools.wraps(call)
        def call_and_spare(packet: Any, *args: Any, **kwargs: Any) -> Any:
            writes = self._values.unseen.run(packet, self._writes_of_packet, packet, args, kwargs)
            if writes is None:
                return call(packet, *args, **kwargs)
            with self._values.sparing(writes):
                return call(packet, *args, **kwargs)

        packet_type.__call__ = call_and_spare

    def _watch(self, jit: ModuleType) -> None:
        run = jit.JITFunction.run

        @functools.wraps(run)
        def run_and_follow(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            if warmup or not self._values.is_following_here():
                return run(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            unseen = self._values.unseen.run
            answer = unseen(kernel, self._follow, kernel, args, kwargs, grid)
            writes = None
            if answer is None:
                writes = unseen(kernel, self._writes_of_kernel, kernel, args, kwargs)
            if writes is None:
                result = run(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            else:
                with self._values.sparing(writes):
                    result = run(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            for region in answer or ():
                unseen(kernel, _write, region)
            return result

        jit.JITFunction.run = run_and_follow

    def _follow(self, kernel: Any, args: Any, kwargs: Any, grid: Any) -> Any:
        """The regions of device memory after the launch; None: unknown."""
        tensor_type = self._torch.Tensor
        tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, tensor_type)]
        if not tensors or any(tensor.dtype not in self._elements for tensor in tensors):
            return None
        if self._torch.cuda.is_current_stream_capturing():
            return None
        try:
            from ullage.players.inside.values import triton_interpreter
        except ImportError:  # NumPy is not installed
            return None
        try:
            return self._run(triton_interpreter, kernel, args, kwargs, grid)
        except Exception:  # the interpreter lacks something that the kernel's code needs
            return None

    def _writes_of_kernel(self, kernel: Any, args: Any, kwargs: Any) -> list[Any] | None:
        """The tensors that a kernel may write to; None: unknown."""
        stored = stored_parameters(kernel.fn)
        if stored is None:
            return None
        arguments = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
        return [
            arguments[name]
            for name in stored
            if isinstance(arguments.get(name), self._torch.Tensor)
        ]

    def _writes_of_packet(self, packet: Any, args: Any, kwargs: Any) -> list[Any] | None:
        """The tensors that a library's own operation writes to, by its schema; None: the operation
        is torch's, or it is unknown.
        """
        if packet not in self._only:
            is_torchs = packet._qualified_op_name.partition("::")[0] in _TORCHS
            names = [] if is_torchs else packet.overloads()
            self._only[packet] = getattr(packet, names[0]) if len(names) == 1 else None
        op = self._only[packet]
        if op is None or not self._values.is_following_here():
            return None
        return self._values.beside.written(op, args, kwargs)

    def _run(self, interpreter: ModuleType, kernel: Any, args: Any, kwargs: Any, grid: Any) -> Any:
        signature = inspect.signature(kernel.fn)
        bound = signature.bind(
            *args, **{k: v for k, v in kwargs.items() if k in signature.parameters}
        )
        bound.apply_defaults()
        sizes = tuple(grid(bound.arguments) if callable(grid) else grid)
        sizes += (1,) * (3 - len(sizes))
        if math.prod(sizes) > _MAX_PROGRAMS:
            return None
        tensor_type = self._torch.Tensor
        memory = {}
        for name, value in bound.arguments.items():
            if isinstance(value, tensor_type):
                storage = value.untyped_storage()
                memory[storage.data_ptr()] = storage.nbytes()
                element = interpreter.np.dtype(self._elements[value.dtype])
                address = interpreter.np.int64(value.data_ptr())
                bound.arguments[name] = interpreter.Lanes(
                    address, None, element, storage.data_ptr()
                )
        candidates = [_region(interpreter, start, num_bytes) for start, num_bytes in memory.items()]
        regions = [region for region in candidates if region is not None]
        language = interpreter.Language(sizes, regions, _MAX_LANES)
        function = _in_language(kernel.fn, language)
        for place in itertools.product(*map(range, sizes)):
            language.place = place
            function(*bound.args, **bound.kwargs)
        return [region for region in regions if region.known is not None]


def _region(interpreter: ModuleType, start: int, num_bytes: int) -> Any:
    """The known bytes of a range of memory; None: it is too large."""
    if not library.is_device_address(start):
        view = (ctypes.c_ubyte * num_bytes).from_address(start)
        return interpreter.Region(
            start, interpreter.np.frombuffer(view, dtype=interpreter.np.uint8), None
        )
    if num_bytes > _MAX_BYTES:
        return None
    data, known = (interpreter.np.zeros(num_bytes, dtype=interpreter.np.uint8) for _ in range(2))
    library.look(start, data.ctypes.data, known.ctypes.data, num_bytes)
    return interpreter.Region(start, data, known.view(bool))


def _in_language(function: Any, language: Any) -> Any:
    """The function of a kernel, with `language` in place of triton.language."""
    names = {}
    for name, value in function.__globals__.items():
        is_language = isinstance(value, ModuleType) and value.__name__ == "triton.language"
        names[name] = language if is_language else value
    return types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )


def _write(region: Any) -> None:
    """Writes the known bytes of a region to the phantom, one contiguous run at a time."""
    known = [False, *region.known.tolist(), False]
    edges = [at for at in range(len(known) - 1) if known[at] != known[at + 1]]
    for first, end in zip(edges[::2], edges[1::2], strict=True):
        at = region.data.ctypes.data + first
        library.write_bytes(region.start + first, at, end - first, library.TRUE_VALUE)
