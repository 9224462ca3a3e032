"""One call of a model: what is needed to run it again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ullage.errors import GuardError
from ullage.runtime.calls.snapshot import Snapshot
from ullage.runtime.calls.tensor_places import tensors_of
from ullage.runtime.failure import Failure

_BACKENDS = ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp")


class CallRecord:
    """A call of a module, from its beginning until its backward is done.

    Attributes:
        owner: the guard of the model.
        number: of the call, in their order.
        module: that is called.
        arguments: what it is called with.
        keywords: the same.
        snapshot: the state before it.
        inputs: the tensors among the arguments.
        outputs: its outputs with a graph; None once they are let go.
        num_outputs: how many there are.
        gradients: those of its outputs, once they are known.
        anchor: where the graph of the script ends (joint.py).
        pool: where the snapshot goes when nothing has the record any more.
        failure: for which its graph was let go.
        zero: a tensor that stands for gradients.
        is_stopping: whether a backward of the script's part ends at the anchor.
    """

    def __init__(
        self,
        owner: Any,
        module: Any,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        snapshot: Snapshot,
        *,
        number: int,
        device_types: tuple[str, ...],
    ) -> None:
        self.owner = owner
        self.number = number
        self.module = module
        self.arguments, self.keywords = arguments
        self.snapshot = snapshot
        self.pool: list[Snapshot] = []
        self.inputs = tensors_of(arguments)
        self.outputs: list[Any] | None = None
        self.num_outputs = 0
        self.gradients: tuple[Any, ...] = ()
        self.anchor: Any = None
        self.zero: Any = None
        self.failure: Failure | None = None
        self.is_stopping = False
        self._versions = [each._version for each in self.inputs]
        self._settings = _Settings(device_types)
        self._shared: list[int] = []

    def __del__(self) -> None:
        self.pool.append(self.snapshot)

    def run(self) -> Any:
        """Calls the module; returns what it returns."""
        return self.module._call_impl(*self.arguments, **self.keywords)

    def run_as_then(self) -> Any:
        """Calls the module under the settings of autocast and attention of the first call."""
        with torch.enable_grad(), self._settings.restored():
            return self.run()

    def check_inputs(self) -> None:
        """Raises GuardError if a tensor that the module was called with has been changed."""
        if [each._version for each in self.inputs] != self._versions:
            raise GuardError("a tensor that the model was called with was changed since")

    def take_outputs(self, outputs: list[Any]) -> None:
        """Notes the outputs that have a graph, and which of them share memory."""
        self.outputs = outputs
        self.num_outputs = len(outputs)
        if len(outputs) > 1 or self.inputs:
            addresses = [each.untyped_storage().data_ptr() for each in outputs]
            known = {each.untyped_storage().data_ptr() for each in self.inputs if _has_memory(each)}
            self._shared = [
                each._version if addresses.count(address) > 1 or address in known else -1
                for each, address in zip(outputs, addresses, strict=True)
            ]

    def check_outputs(self) -> None:
        """Raises GuardError if the script has changed outputs that share memory, in place: their
        gradients would be others.
        """
        for output, version in zip(self.outputs or (), self._shared, strict=False):
            if version not in (-1, output._version):
                raise GuardError(
                    "the script changes an output of the model in place that shares its memory "
                    "with another output or an input, which the guard cannot follow; run it "
                    "without the guard, or let the model return a copy"
                )

    def take_gradient(self, root: Any) -> None:
        """Notes the gradient with which a backward begins at an output."""
        start = torch.ones_like(root, memory_format=torch.preserve_format)
        places = range(self.num_outputs)
        self.gradients = tuple(start if place == root.output_nr else None for place in places)

    def pairs(self) -> list[tuple[Any, Any]]:
        """The outputs that have a gradient, each with it."""
        return [
            (output, gradient)
            for output, gradient in zip(self.outputs or (), self.gradients, strict=True)
            if gradient is not None
        ]

    @contextmanager
    def passing(self) -> Iterator[None]:
        """While the backward of the call runs for something past the guard."""
        try:
            yield
        finally:
            self.gradients = ()

    def let_go(self, failure: Failure) -> None:
        """Lets go of the graph, and so of all that is saved for backward, after an error."""
        self.outputs = None
        self.failure = failure

    def finish(self) -> None:
        """Lets go of everything: the backward is done."""
        self.outputs = self.anchor = None
        self.gradients = ()
        self.inputs = []
        self.arguments, self.keywords = (), {}


class _Settings:
    """Autocast, and which kernels attention may use, at the time of a call."""

    def __init__(self, device_types: tuple[str, ...]) -> None:
        self._autocast = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in device_types
        ]
        self._has_cache = torch.is_autocast_cache_enabled()
        self._attention = _attention_of()

    @contextmanager
    def restored(self) -> Iterator[None]:
        """While they are as they were."""
        now = _attention_of()
        with ExitStack() as stack:
            for kind, dtype, is_enabled in self._autocast:
                stack.enter_context(
                    torch.autocast(kind, dtype, is_enabled, cache_enabled=self._has_cache)
                )
            if now != self._attention:
                stack.callback(_set_attention, now)
                _set_attention(self._attention)
            yield


def _attention_of() -> list[bool]:
    backends = torch.backends.cuda
    return [bool(getattr(backends, f"{name}_enabled")()) for name in _BACKENDS]


def _set_attention(flags: list[bool]) -> None:
    for name, flag in zip(_BACKENDS, flags, strict=True):
        getattr(torch.backends.cuda, f"enable_{name}")(flag)


def _has_memory(tensor: Any) -> bool:
    return tensor.layout is torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter)
