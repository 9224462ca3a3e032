"""A forward that runs twice, once for its result and again in backward, and has the effects of one.

What torch's checkpoint leaves to its users is taken care of here: batch norm counts a batch once,
caches of transformers get keys and values of neither run, and the second run starts from the
attributes and the random numbers of Python and NumPy that the first one found, and writes to none
(python_state.py). A module whose second run would not be as its first is refused, where a gradient
would be wrong and nobody told. torch's random numbers are the business of the checkpoint, which
plays them again.

    run = Rerun(module.forward)         # for one call of the module
    checkpointed(run, (inputs,), {})
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ullage.errors import PlanError
from ullage.techniques.means.nested import tensors
from ullage.techniques.means.python_state import PythonState

_WITHIN = ContextVar("a run whose operations' results are kept is on", default=False)
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
# What transformers hands its layers to keep keys and values in: it would get them twice.
_CACHES = "transformers.cache_utils"


def checkpointed(
    run: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], **settings: Any
) -> Any:
    """What a forward makes of its arguments, whose activations are computed again in backward.

    torch's checkpoint keeps the random numbers of the devices of positional tensors, and of no
    others; so it is given one of each device.

    Args:
        settings: of torch's checkpoint.
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
        keeps_results: of some operations, by their order: what runs again within would mix them up.
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
            with self._state.again(), _apart(self._module):
                return self._run(arguments, keywords)
        before = _versions(inputs)
        self._state = PythonState(self._module)
        attributes = _versions(self._state.tensors())
        buffers = dict(self._module.named_buffers())
        versions = _versions(buffers.values())
        with _apart(self._module):
            pass  # both runs copy: selective checkpointing wants the same operations of them
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
        """Raises PlanError where the first run has changed what the second would start from."""
        if _versions(inputs) != before:
            self._refuse("changes its input in place")
        own = {id(buffer) for module in _normalizers(self._module) for buffer in module.buffers()}
        after = dict(self._module.named_buffers())
        for (name, buffer), version in zip(buffers.items(), versions, strict=True):
            is_same = after.get(name) is buffer and _versions([buffer]) == [version]
            if id(buffer) not in own and not is_same:
                self._refuse(f"changes its buffer {name!r}")

    def _check_unchanged(self, inputs: list[Any]) -> None:
        """Raises PlanError where something was changed between the two runs."""
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
    """Arguments of a layer of transformers with copies of the caches that it would put keys and
    values into: each run finds what the first one found, and nothing is kept. In training nobody
    reads them; transformers' own checkpointing hands none to its layers.
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
    """Whether each part is in training."""
    return [part.training for part in module.modules()]


def _versions(values: Any) -> list[int | None]:
    """How often each was changed; None of one that does not count."""
    return [None if tensor.is_inference() else tensor._version for tensor in values]


def _normalizers(module: Any) -> Iterator[Any]:
    """The batch norms in a module that follow their batches."""
    for part in module.modules():
        if getattr(part, "track_running_stats", False) and part.training:
            yield part


@contextmanager
def _apart(module: Any) -> Iterator[None]:
    """While this lasts, batch norms write their statistics to copies that nobody reads."""
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
