"""Records an optimizer's step with sharded tensors while it runs, so that it can be finished.

Its operations on lists, fused ones too, move the version counters of the parts. Results of its
collectives are held until its end: a rank that runs the step once more takes these, as the other
ranks do not take part again.

    recording = Recording()
    with SharedStep(recording):
        ...                      # step()
    recording.begin()            # another run: what was recorded is given out again
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ullage.act.guard.call import Call, memory_key, tensors_in
from ullage.act.guard.sharded.local_tensors import are_fake, have_parts
from ullage.ground.errors import GuardError

MAX_BYTES = 64 << 20
_COLLECTIVES = ("_c10d_functional", "_dtensor")
_LISTS = ("_foreach_", "_fused_", "_amp_foreach_")
_ADD_TO_COUNTERS = torch._C.DispatchKey.ADInplaceOrView


class Recording:
    """The collectives of a step of an optimizer."""

    def __init__(self) -> None:
        self._results: list[tuple[Any, Any]] = []
        self._memory: set[Any] = set()
        self._num_bytes = 0
        self._next = 0
        self._lost: str | None = None

    def clear(self) -> None:
        """Before a step."""
        self._results.clear()
        self._memory.clear()
        self._num_bytes = self._next = 0
        self._lost = None

    def begin(self) -> None:
        """Before the step is run once more.

        Raises:
            GuardError: other ranks have taken part in a collective of which there is no result.
        """
        if self._lost is not None:
            raise GuardError(f"the optimizer's step has run a collective {self._lost}")
        self._next = 0

    @property
    def has_next(self) -> bool:
        """True if the next collective has run before."""
        return self._next < len(self._results)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs a collective, or gives its result if it has run."""
        if self.has_next:
            operator, result = self._results[self._next]
            if operator is not func:
                raise GuardError("the optimizer's step runs other collectives the second time")
            self._next += 1
            return result
        if func._schema.is_mutable:
            self._lost = "that writes to its operands, which is not followed"
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        self._hold(func, result)
        return result

    def _hold(self, func: Any, result: Any) -> None:
        self._num_bytes += sum(each.numel() * each.element_size() for each in tensors_in(result))
        if self._num_bytes > MAX_BYTES:
            self._results.clear()
            self._lost = (
                f"and its results take more than {MAX_BYTES >> 20} MiB, so they are not held"
            )
        if self._lost is None:
            self._results.append((func, result))
            self._memory |= {memory_key(each) for each in tensors_in(result)}
            self._next += 1

    @property
    def has_results(self) -> bool:
        """True if there are results."""
        return bool(self._results)

    def note_written(self, tensors: Iterable[Any]) -> None:
        """Notes that tensors are written to: a result must stay what it was."""
        if self._memory and any(memory_key(each) in self._memory for each in tensors):
            self._lost = "and changed its result in place, which is needed once more"

    def note_other(self) -> None:
        """Notes a collective that is none of DTensor's."""
        self._lost = "of torch.distributed itself, which is not followed"


def is_collective(func: Any) -> bool:
    """True if an operator is a collective of DTensor's."""
    is_other = func.__name__.startswith(("wait_tensor", "_"))
    return func.namespace in _COLLECTIVES and not is_other


class SharedStep(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """While it is on, operations on lists of parts move their version counters, and collectives are
    recorded.
    """

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if have_parts(types) and not are_fake(types):
            return NotImplemented
        kwargs = kwargs or {}
        if is_collective(func) and not are_fake(types):
            return self._recording.run(func, args, kwargs)
        if func.namespace == "c10d":
            self._recording.note_other()
        if not func._schema.is_mutable:
            return func(*args, **kwargs)
        if self._recording.has_results:
            self._recording.note_written(Call(func, args, kwargs).changed)
        if not func.__name__.startswith(_LISTS):
            return func(*args, **kwargs)
        # Within a mode or a subclass the counters of lists stand still. Those of single tensors
        # have been moved, by the subclass itself.
        with torch._C._SetExcludeDispatchKeyGuard(_ADD_TO_COUNTERS, False):  # noqa: FBT003
            result = func(*args, **kwargs)
        if func.__name__.startswith("_fused_"):
            # Its kernels move none. Between the count of steps, which is the evidence without
            # shards, and the update DTensor may need memory.
            torch.autograd.graph.increment_version(args[0])
        return result
