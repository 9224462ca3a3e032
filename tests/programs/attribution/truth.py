"""Who owns which block, as the program itself knows it: the truth that attribution is judged by.

Nothing here asks ullage anything but the time: `ullage_position`, the number of allocator events so
far. What is noted:

- claims: at a position, the storage at an address belongs to a category, and to a module where the
  program says which (a parameter's owner). Saved tensors are seen as autograd saves them.
- turns: from a position on, this module's call was the innermost one running; in backward, the
  module in whose call the running node of the graph was made. Nodes are told apart at the entry and
  the exit of every call: what is new in the graph of a call's inputs was made by the caller, what
  is new in the graph of its outputs by the module.
- operations: the positions between which each one ran. What it allocated and did not return is its
  own scratch memory. Compiled calls run as they are written where operations are seen: in a program
  with such calls each whole forward and backward is taken for one operation, and what it neither
  returned nor saved is its scratch memory.

    with Truth() as truth:
        model = truth.owner(Net().cuda())
        optimizer = truth.optimizer(torch.optim.AdamW(model.parameters()))
        loss = model(truth.input(x)).sum()
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_position = ctypes.CDLL(None).ullage_position
_position.restype = ctypes.c_uint64


class _Running(threading.local):
    """What a thread is busy with: module calls, and below them the node of the graph."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.node: str | None = None
        self.has_grad = True


class _Operations(TorchDispatchMode):
    """Sees every operation, forward, backward and optimizer."""

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self._truth = truth

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation and notes what it took."""
        begin = _position()
        result = func(*args, **(kwargs or {}))
        self._truth.note_operation(begin, args, result)
        return result


class Truth:
    """Collects the truth while entered, and writes it to the file that the command line names."""

    def __init__(self, *, is_compiled: bool = False) -> None:
        self.claims: list[tuple[int, int, int, str, str | None]] = []
        self.turns: list[tuple[int, str | None]] = []
        self.seen: list[tuple[int, int]] = []
        self._running = _Running()
        self._paths: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._parameters: dict[int, tuple[nn.Parameter, str]] = {}
        self._cleared = (0, 0)
        self._stack = contextlib.ExitStack()
        self._has_operations = not is_compiled  # a compiled call runs as it is written under a mode

    # ---- What the program says -------------------------------------------------------------------

    def owner(self, model: nn.Module, root: str = "") -> nn.Module:
        """A root module, before it is wrapped: its parts' paths, parameters and buffers. Beside
        the model that the program is about, another root has a name of its own.
        """
        for path, module in model.named_modules():
            self._paths[module] = f"{root}.{path}".strip(".")
        for name, parameter in model.named_parameters():
            self.parameter(parameter, f"{root}.{name}".strip(".").rpartition(".")[0])
        for name, buffer in model.named_buffers():
            self.say("buffer", buffer, f"{root}.{name}".strip(".").rpartition(".")[0])
        return model

    def parameter(self, parameter: nn.Parameter, path: str) -> None:
        """A parameter, and the module that owns it."""
        self._parameters[id(parameter)] = (parameter, path)
        self.say("parameter", parameter, path)

    def optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """An optimizer: its state is walked after each step."""
        optimizer.register_step_post_hook(self._after_step)
        return optimizer

    def input(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the program feeds to the model or the loss."""
        self.say("input", tensor)
        return tensor

    def say(self, category: str, tensors: Any, path: str | None = None) -> None:
        """The storages of tensors belong to a category now, and to a module where one is named."""
        for tensor in tree_leaves(tensors):
            where = _storage(tensor)
            if where is not None:
                self.claims.append((_position(), *where, category, path))

    def operating(self) -> TorchDispatchMode:
        """What is done within this context is seen operation by operation."""
        return _Operations(self)

    def owner_of(self, parameter: Any) -> str | None:
        """The path of the module that owns a parameter; None: nobody has said."""
        known = self._parameters.get(id(parameter))
        return known[1] if known is not None else None

    def path_of(self, module: nn.Module) -> str | None:
        """The path of a module; None: nobody has said."""
        return self._paths.get(module)

    # ---- What is seen ----------------------------------------------------------------------------

    def __enter__(self) -> Truth:
        self._stack.enter_context(_patched(nn.Module, "__call__", self._around_call))
        self._stack.enter_context(_patched(torch.autograd, "backward", self._around_backward))
        hooks = torch.autograd.graph.saved_tensors_hooks
        self._stack.enter_context(_patched(hooks, "__init__", self._around_hooks))
        if self._has_operations:
            self._stack.enter_context(self.operating())
        self._stack.enter_context(hooks(lambda tensor: tensor, lambda tensor: tensor))
        self._turn()
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        self._stack.close()
        if kind is not None:
            return
        self.say_gradients()
        # Scratch memory of cuBLAS is what torch gives back when it is told to.
        gc.collect()
        begin = _position()
        torch._C._cuda_clearCublasWorkspaces()
        self._cleared = (begin, _position())
        if len(sys.argv) > 1:
            self._write(Path(sys.argv[1]))

    def note_operation(self, begin: int, args: Any, result: Any) -> None:
        """An operation has ended that began at a position."""
        end = _position()
        if end != begin:
            self.seen.append((begin, end))
            self.say("output", result)
        if self._running.calls and not self._running.has_grad:
            self.say("hidden", args)  # without gradients nobody saves it

    def say_gradients(self) -> None:
        """What `.grad` of each parameter holds."""
        for parameter, path in self._parameters.values():
            if parameter.grad is not None:
                self.say("gradient", parameter.grad, path)

    def _after_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self.say_gradients()
        for parameter, state in optimizer.state.items():
            self.say("optimizer_state", state, self.owner_of(parameter))

    def _turn(self) -> None:
        running = self._running
        self.turns.append((_position(), running.calls[-1] if running.calls else running.node))

    def _around_call(self, call: Any) -> Any:
        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            calls = self._running.calls
            if not calls:
                self._running.has_grad = torch.is_grad_enabled()
            is_root = not calls  # in backward: of what is recomputed
            begin = _position()
            self._own_nodes((args, kwargs))
            calls.append(self._paths.get(module, calls[-1] if calls else ""))
            self._turn()
            try:
                result = call(module, *args, **kwargs)
                self._own_nodes(result)
            finally:
                calls.pop()
                self._turn()
            if is_root:
                self.say("returned", result)
                self._note_pass(begin)
            return result

        return __call__

    def _around_backward(self, backward: Any) -> Any:
        def run(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            node, begin = self._running.node, _position()
            self._own_nodes(tensors)
            try:
                return backward(tensors, *args, **kwargs)
            finally:
                self._running.node = node
                self._turn()
                self.say_gradients()
                self._note_pass(begin)

        return run

    def _note_pass(self, begin: int) -> None:
        if not self._has_operations:
            self.seen.append((begin, _position()))

    def _around_hooks(self, init: Any) -> Any:
        """Whatever hooks are set, what they keep of a tensor on the device is a saved tensor."""

        def __init__(hooks: Any, pack: Any, unpack: Any) -> None:
            is_recomputing = type(hooks).__name__ == "_recomputation_hook"  # keeps it elsewhere

            def pack_and_note(tensor: Any) -> Any:
                packed = pack(tensor)
                self.say("saved", tensor if is_recomputing else packed)
                return packed

            init(hooks, pack_and_note, unpack)

        return __init__

    def _own_nodes(self, tensors: Any) -> None:
        """Nodes of the graph that nobody owns yet were made by the call that is running."""
        running = self._running
        owner = running.calls[-1] if running.calls else running.node
        found = [leaf.grad_fn for leaf in tree_leaves(tensors) if isinstance(leaf, torch.Tensor)]
        while found:
            node = found.pop()
            if node is None or "owner" in node.metadata:
                continue
            variable = getattr(node, "variable", None)  # of a node that accumulates a gradient
            path = owner if variable is None else self.owner_of(variable)
            node.metadata["owner"] = path
            node.register_prehook(self._before_node(path))
            found += [following for following, _ in node.next_functions]

    def _before_node(self, path: str | None) -> Any:
        def begin(_gradients: Any) -> None:
            self._running.node = path
            self._turn()

        return begin

    def _write(self, path: Path) -> None:
        content = {
            "claims": self.claims,
            "turns": self.turns,
            "operations": self.seen,
            "cleared": self._cleared,
        }
        path.write_text(json.dumps(content))


@contextlib.contextmanager
def _patched(holder: Any, name: str, around: Any) -> Iterator[None]:
    original = getattr(holder, name)
    setattr(holder, name, around(original))
    try:
        yield
    finally:
        setattr(holder, name, original)


def _storage(tensor: Any) -> tuple[int, int] | None:
    """Device and address of a tensor's storage on a device; None: it has none."""
    tensor = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
    if not isinstance(tensor, torch.Tensor) or not tensor.is_cuda:
        return None
    try:
        address = tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return None
    return (tensor.get_device(), address) if address else None
