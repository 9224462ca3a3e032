"""The collectives of a step: counted before they begin, and none is begun after a failure.

A rank that has failed, or is behind, joins those that others have begun, with zeros: nobody waits
for it then. Their results are of no use, and the step is run again.

The kernels of `torch.ops.c10d`, through which all collectives go (those of DDP's reducer in C++,
of FSDP2, of DTensor, and of the program itself), are overridden while a guard is open.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ullage.errors import GuardError
from ullage.runtime.ranks.agreement import PeerOutOfMemory

# What a rank gives to them depends on what another rank gives, or they are of two ranks.
_UNEQUAL = (
    "gather_", "scatter_", "send", "recv_", "recv_any_source_", "alltoall_",
    "monitored_barrier_", "reduce_scatter_",
)  # fmt: skip
_KEYS = ("CPU", "CUDA")
_PAUSE_S = 0.001


class Collectives:
    """Those of one rank since its step began.

    Attributes:
        on_collective: called before each.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._library: Any = None
        self._logs: dict[str, list[Any]] = {}
        self._num_begun: dict[str, int] = {}
        self._is_counting = False
        self._is_frozen = False
        self.on_collective: Callable[[], None] = _do_nothing

    @property
    def is_frozen(self) -> bool:
        """Whether a rank has failed."""
        return self._is_frozen

    def attach(self) -> None:
        """Begins to watch collectives."""
        self._library = torch.library.Library("c10d", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Warning only once for all operators")
            for schema in torch._C._jit_get_all_schemas():
                if schema.name.startswith("c10d::") and _has_group(schema):
                    for key in _KEYS:
                        self._override(schema, key)

    def _override(self, schema: Any, key: str) -> None:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(schema.name, key):
            return
        name = schema.name.partition("::")[2]
        kernel = torch.library.get_kernel(schema.name, key)
        place = [argument.name for argument in schema.arguments].index("process_group")

        def run(keyset: Any, *arguments: Any) -> Any:
            if not self._is_counting:
                return kernel.call_boxed(keyset, *arguments)
            self.on_collective()
            group = self._enter(name, arguments, place)
            result = kernel.call_boxed(keyset, *arguments)
            with self._lock:
                self._num_begun[group] += 1
            return result

        self._library.impl(name, run, key, with_keyset=True)

    def _enter(self, name: str, arguments: Sequence[Any], place: int) -> str:
        process_group = dist.ProcessGroup.unbox(arguments[place])
        group: str = process_group.group_name
        entry = [name, [*map(_describe, arguments)]]
        with self._lock:
            if self._is_frozen:
                raise PeerOutOfMemory("another rank ran out of memory")
            if group not in self._logs:
                self._logs[group], self._num_begun[group] = [], 0
            self._logs[group].append(entry)
        return group

    def detach(self) -> None:
        """Ends that."""
        self._is_counting = False
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def begin(self) -> None:
        """Before a step, or before it is run again."""
        self.clear()
        self._is_frozen = False
        self._is_counting = True

    def clear(self) -> None:
        """After a step, or a try that failed: none is counted."""
        with self._lock:
            self._is_counting = False
            self._logs.clear()
            self._num_begun.clear()

    def freeze(self) -> Mapping[str, int]:
        """From now on no collective is entered; how many were, by group."""
        with self._lock:
            self._is_frozen = True
            return {group: len(log) for group, log in self._logs.items()}

    def describe(self, group: str, first: int) -> list[Any]:
        """The collectives of a group that were entered, from one on."""
        with self._lock:
            return list(self._logs[group][first:])

    def count_missing(self, counts: Mapping[str, int]) -> dict[str, int]:
        """By group, how many collectives this rank has not begun and another has."""
        missing = {
            group: count - self._num_begun.get(group, 0)
            for group, count in counts.items()
            if group in self._logs or _find_group(group) is not None
        }
        return {group: number for group, number in missing.items() if number > 0}

    def join(
        self, missing: Mapping[str, int], read_log: Callable[[str], Any], deadline_s: float
    ) -> None:
        """Takes part in what others have begun.

        Args:
            missing: by group, how many collectives.
            read_log: from which collective on the foremost rank describes them, and these.
            deadline_s: how long that may take.

        Raises:
            GuardError: one of them cannot be joined, or is not over in time.
        """
        self._is_counting = False
        works = []
        for group, number in missing.items():
            own = self._logs.get(group, [])
            entries = own[self._num_begun.get(group, 0) :]
            if len(entries) < number:
                first, log = read_log(group)
                entries = [*entries, *log[len(own) - first :]]
            process_group = _find_group(group).boxed()
            works += [_join_entry(process_group, entry) for entry in entries]
        self._wait(works, deadline_s)

    def _wait(self, works: Sequence[Any], deadline_s: float) -> None:
        end = time.monotonic() + deadline_s
        for work, _ in works:
            while not work.is_completed():
                if time.monotonic() > end:
                    raise GuardError(
                        f"a collective that another rank had begun was not over within "
                        f"{deadline_s:g} s (deadline_s)"
                    )
                time.sleep(_PAUSE_S)


def _join_entry(process_group: Any, entry: Any) -> Any:
    """Begins a collective with zeros: its work, and the tensors."""
    name, arguments = entry
    has_splits = any(kind == "list" and content for kind, content, *_ in arguments)
    if name in _UNEQUAL or (name == "alltoall_base_" and has_splits):
        raise GuardError(
            f"another rank waits in {name.strip('_')}, in which a rank that has failed cannot "
            "take part"
        )
    values = [_build(argument, process_group) for argument in arguments]
    result = getattr(torch.ops.c10d, name)(*values)
    work = result[-1] if isinstance(result, tuple | list) else result
    return dist.Work.unbox(work), values


def _find_group(name: str) -> Any:
    """A process group that this rank is in, or None."""
    try:
        return torch._C._distributed_c10d._resolve_process_group(name)
    except (RuntimeError, ValueError):
        return None


def _has_group(schema: Any) -> bool:
    return any(argument.name == "process_group" for argument in schema.arguments)


def _describe(value: Any) -> list[Any]:
    """A value of an argument, for JSON."""
    if isinstance(value, torch.Tensor):
        return ["tensor", list(value.shape), str(value.dtype).removeprefix("torch."),
                value.device.type]  # fmt: skip
    if isinstance(value, list | tuple):
        return ["list", [_describe(element) for element in value]]
    if value is None or isinstance(value, bool | int):
        return ["value", value]
    return ["object", str(value._type()).rpartition(".")[2]]


def _build(description: Sequence[Any], process_group: Any) -> Any:
    """A value of the same kind, with zeros."""
    kind, content = description[:2]
    if kind == "tensor":
        return torch.zeros(content, dtype=getattr(torch, description[2]), device=description[3])
    if kind == "list":
        return [_build(element, process_group) for element in content]
    if kind == "value":
        return content
    return process_group if content == "ProcessGroup" else torch.classes.c10d.ReduceOp()


def _do_nothing() -> None:
    """Nothing."""
