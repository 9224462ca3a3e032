"""A forward that runs twice, first for its result and again in backward, with the side effects of
one run.

This handles what torch's checkpoint leaves to its users. Batch norm counts a batch once. Caches of
transformers get no keys and values from either run. The second run starts from the same attributes
and the same random state of Python and NumPy as the first, and writes to none of them
(python_state.py). If the second run of a module would differ from the first, so that gradients
would be silently wrong, the module is refused. The checkpoint itself restores torch's random state.

    run = Rerun(module.forward)         # for one call of the module
    checkpointed(run, (inputs,), {})
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

from ullage.act.techniques.means.nested import tensors
from ullage.act.techniques.means.python_state import PythonState
from ullage.ground.errors import PlanError

# What is put around each second run: contexts of the module. A guard takes back what hooks and
# functions of the program change outside the module.
AROUND: list[Callable[[Any], AbstractContextManager[None]]] = []
_WITHIN = ContextVar("a run whose operations' results are kept is on", default=False)
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
# Caches that transformers passes to its layers; both runs would write keys and values.
_CACHES = "transformers.cache_utils"


def checkpointed(
    run: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], **settings: Any
) -> Any:
    """Runs a forward whose activations are recomputed in backward.

    torch's checkpoint restores the random state only of devices of positional tensors, so it gets
    one tensor of each device.

    Args:
        run: the forward, usually a `Rerun`.
        arguments: its positional arguments.
        keywords: its keyword arguments.
        settings: options of torch's checkpoint.
    """
    from torch.utils.checkpoint import checkpoint

    devices = {tensor.device: tensor for tensor in tensors((arguments, keywords))}

    def call(_: Any, *arguments: Any, **keywords: Any) -> Any:
        return run(*arguments, **keywords)

    examples = tuple(devices.values())
    return checkpoint(call, examples, *arguments, use_reentrant=False, **settings, **keywords)


class Rerun:
    """Runs a forward, and runs it again later.

    Args:
        forward: a method of the module.
        keeps_results: whether results of some operations are saved by their order, which a nested
            rerun would change.
    """

    def __init__(self, forward: Any, *, keeps_results: bool = False) -> None:
        self._forward = forward
        self._module = forward.__self__
        self._keeps_results = keeps_results
        if _WITHIN.get():
            self._refuse("is within one that is checkpointed selectively")
        self._seen: tuple[Any, ...] | None = None
        self._training = _flags(self._module)
        self._state: PythonState

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        inputs = list(tensors((arguments, keywords)))
        if self._seen is not None:
            self._check_unchanged(inputs)
            with ExitStack() as stack:
                for around in AROUND:
                    stack.enter_context(around(self._module))
                stack.enter_context(self._state.again())
                stack.enter_context(_apart(self._module))
                return self._run(arguments, keywords)
        before = _versions(inputs)
        self._state = PythonState(self._module)
        attributes = _versions(self._state.tensors())
        buffers = dict(self._module.named_buffers())
        versions = _versions(buffers.values())
        with _apart(self._module):
            pass  # both runs copy, as selective checkpointing needs the same operations in both
        result = self._run(arguments, keywords)
        self._check_repeatable(inputs, before, buffers, versions)
        if self._state.parts_added():
            self._refuse(f"makes or drops its part {self._state.parts_added()[0]!r}")
        if _versions(self._state.tensors()) != attributes:
            self._refuse("changes a tensor that it keeps in place")
        self._seen = before, _versions(self._module.parameters()), attributes
        return result

    def _run(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        token = _WITHIN.set(self._keeps_results)
        try:
            return self._forward(*with_own_caches(arguments), **with_own_caches(keywords))
        finally:
            _WITHIN.reset(token)

    def _check_repeatable(
        self,
        inputs: list[Any],
        before: list[int | None],
        buffers: dict[str, Any],
        versions: list[int | None],
    ) -> None:
        """Raises PlanError if the first run has changed the state that the second starts from."""
        if _versions(inputs) != before:
            self._refuse("changes its input in place")
        own = {id(buffer) for module in _normalizers(self._module) for buffer in module.buffers()}
        after = dict(self._module.named_buffers())
        for (name, buffer), version in zip(buffers.items(), versions, strict=True):
            is_same = after.get(name) is buffer and _versions([buffer]) == [version]
            if id(buffer) not in own and not is_same:
                self._refuse(f"changes its buffer {name!r}")

    def _check_unchanged(self, inputs: list[Any]) -> None:
        """Raises PlanError if something has changed between the two runs."""
        parameters = _versions(self._module.parameters())
        if (_versions(inputs), parameters, _versions(self._state.tensors())) != self._seen:
            self._refuse("has inputs or parameters that were changed before backward")
        if _flags(self._module) != self._training:
            self._refuse("was switched between training and evaluation before backward")

    def _refuse(self, why: str) -> None:
        raise PlanError(
            f"a {type(self._module).__name__} {why}, and would not compute the same when it runs "
            "again; take it out of the plan"
        )


def with_own_caches(value: Any) -> Any:
    """Arguments of a transformers layer with copies of the caches for keys and values. Each run
    starts with the same cache, and the copies are discarded. Training does not read the caches;
    transformers' own checkpointing passes none to its layers.
    """
    if isinstance(value, tuple | list):
        return type(value)(with_own_caches(element) for element in value)
    if isinstance(value, dict):
        return {name: with_own_caches(element) for name, element in value.items()}
    if not type(value).__module__.startswith(_CACHES):
        return value
    cache = copy.copy(value)
    for name, var in vars(cache).items():
        setattr(cache, name, with_own_caches(var))
    return cache


def _flags(module: Any) -> list[bool]:
    return [part.training for part in module.modules()]


def _versions(values: Any) -> list[int | None]:
    """The version of each tensor; None for tensors without one."""
    return [None if tensor.is_inference() else tensor._version for tensor in values]


def _normalizers(module: Any) -> Iterator[Any]:
    """The batch norms in a module that update running statistics."""
    for part in module.modules():
        if getattr(part, "track_running_stats", False) and part.training:
            yield part


@contextmanager
def _apart(module: Any) -> Iterator[None]:
    """In this context, batch norms write their statistics to copies, which are discarded."""
    originals = []
    for part in _normalizers(module):
        for name in _STATISTICS:
            buffer = part._buffers.get(name)
            if buffer is not None:
                originals.append((part._buffers, name, buffer))
                part._buffers[name] = buffer.clone()
    try:
        yield
    finally:
        for buffers, name, buffer in originals:
            buffers[name] = buffer
