"""The collectives of a step: counted before they begin, and none is begun after a failure.

A rank that has failed, or is behind, joins those that others have begun, with zeros: nobody waits
for it then. Their results are of no use, and the step is run again.

All collectives go through `torch.ops.c10d`: those of DDP's reducer in C++, of FSDP2, of DTensor,
and of the program itself. While a guard is open a function of its own stands before their kernels.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ullage.act.guard.ranks.agreement import PeerOutOfMemory
from ullage.ground.errors import GuardError

# What a rank gives to them depends on what another rank gives, or they are of two ranks.
_UNEQUAL = (
    "gather_", "scatter_", "send", "recv_", "recv_any_source_", "alltoall_",
    "monitored_barrier_", "reduce_scatter_",
)  # fmt: skip
_DISPATCH_KEYS = {"cpu": torch._C.DispatchKey.CPU, "cuda": torch._C.DispatchKey.CUDA}
_PAUSE_S = 0.001


class Collectives:
    """The collectives of one rank since its step began.

    Attributes:
        on_collective: called before each.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._library: Any = None
        self._logs: dict[str, list[Any]] = {}
        self._num_failed: dict[str, int] = {}
        self._is_counting = False
        self._is_frozen = False
        self._step = 0
        # The descriptions of collectives that are like earlier ones.
        self._known: dict[Any, list[Any]] = {}
        self.on_collective: Callable[[], None] = lambda: None

    @property
    def is_frozen(self) -> bool:
        """True if a rank has failed."""
        return self._is_frozen

    def attach(self) -> None:
        """Begins to watch collectives."""
        self._library = torch.library.Library("c10d", "IMPL")
        for schema in torch._C._jit_get_all_schemas():
            if schema.name.startswith("c10d::"):
                names = [argument.name for argument in schema.arguments]
                if "process_group" in names:
                    name = schema.name.partition("::")[2]
                    self._watch(name, names.index("process_group"))

    def _watch(self, name: str, place: int) -> None:
        """Puts a function before the kernels of a collective, whose process group is the argument
        at a place. The kernels run without Python's lock: some wait for other ranks.
        """
        operator = getattr(torch.ops.c10d, name).default

        def run(*arguments: Any) -> Any:
            key = _DISPATCH_KEYS[_device_of(arguments) or "cpu"]
            if not self._is_counting:
                return operator._op_dk(key, *arguments)
            self.on_collective()
            process_group = dist.ProcessGroup.unbox(arguments[place])
            number = process_group._get_sequence_number_for_group()
            self._enter(name, arguments, process_group.group_name)
            try:
                return operator._op_dk(key, *arguments)
            except torch.OutOfMemoryError:
                # Before the backend has counted it, other ranks wait for this one.
                if process_group._get_sequence_number_for_group() == number:
                    self._note_failed(process_group.group_name)
                raise

        # A key that every call has, right above those of the backends.
        self._library.impl(name, run, "BackendSelect")

    def _enter(self, name: str, arguments: Sequence[Any], group: str) -> None:
        key = (name, *map(_key_of, arguments))
        entry = self._known.get(key)
        if entry is None:
            entry = self._known[key] = [name, [*map(_describe, arguments)]]
        with self._lock:
            if self._is_frozen:
                raise PeerOutOfMemory("another rank ran out of memory")
            self._logs.setdefault(group, []).append(entry)

    def _note_failed(self, group: str) -> None:
        """The collective that was entered last was not begun."""
        with self._lock:
            if self._is_frozen:
                self._num_failed[group] = 1  # it was told to others
            else:
                self._logs[group].pop()  # an optimizer may enter it once more

    def detach(self) -> None:
        """Ends that."""
        self._is_counting = False
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def begin(self) -> None:
        """Before a step, or before it is run again."""
        with self._lock:
            self._step += 1
            self._logs.clear()
            self._num_failed.clear()
            self._is_counting = True

    def thaw(self) -> None:
        """All ranks know of the failure: collectives may be entered again. A later failure, even
        one that comes before this rank begins its next step, freezes them again.
        """
        self._is_frozen = False

    def pause(self) -> None:
        """Counts none until `go_on`."""
        self._is_counting = False

    def go_on(self) -> None:
        """Counts again."""
        self._is_counting = True

    def clear(self) -> None:
        """After a step, or a try that failed: none is counted."""
        with self._lock:
            self._is_counting = False
            self._logs.clear()
            self._num_failed.clear()

    def freeze(self) -> tuple[int, Mapping[str, int]]:
        """From now on no collective is entered; the number of the step, and how many collectives
        of it were, by group.
        """
        with self._lock:
            self._is_frozen = True
            return self._step, {group: len(log) for group, log in self._logs.items()}

    def describe(self, group: str, first: int) -> list[Any]:
        """The collectives of a group that were entered, from one on."""
        with self._lock:
            return list(self._logs[group][first:])

    def count_missing(self, counts: Mapping[str, int]) -> dict[str, int]:
        """By group, how many collectives this rank has not begun and another has."""
        missing = {
            group: count - self._count_begun(group)
            for group, count in counts.items()
            if group in self._logs or _find_group(group) is not None
        }
        return {group: number for group, number in missing.items() if number > 0}

    def _count_begun(self, group: str) -> int:
        return len(self._logs.get(group, ())) - self._num_failed.get(group, 0)

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
            entries = own[self._count_begun(group) :]
            if len(entries) < number:
                first, log = read_log(group)
                entries = [*entries, *log[len(own) - first :]]
            process_group = _find_group(group).boxed()
            works += [_join_entry(process_group, entry) for entry in entries]
        _wait(works, deadline_s)


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


def _wait(works: Sequence[Any], deadline_s: float) -> None:
    """Waits for collectives. Some works of gloo are over only once somebody waits for them, and a
    wait of gloo's has no deadline of ours; so a thread waits.
    """
    on_host = [work for work, values in works if _device_of(values) != "cuda"]
    on_device = [work for work, values in works if _device_of(values) == "cuda"]
    errors: list[Exception] = []

    def wait() -> None:
        try:
            for work in on_host:
                work.wait()
            while not all(work.is_completed() for work in on_device):
                time.sleep(_PAUSE_S)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=wait, name="ullage-guard", daemon=True)
    thread.start()
    thread.join(deadline_s)
    if errors:
        raise GuardError(f"a collective that another rank had begun failed: {errors[0]}")
    if thread.is_alive():
        raise GuardError(
            f"a collective that another rank had begun was not over within {deadline_s:g} s "
            "(deadline_s)"
        )


def _find_group(name: str) -> Any:
    try:
        return torch._C._distributed_c10d._resolve_process_group(name)
    except (RuntimeError, ValueError):
        return None


def _device_of(value: Any) -> str | None:
    if isinstance(value, torch.Tensor):
        return str(value.device.type)
    if isinstance(value, list | tuple):
        return next(filter(None, map(_device_of, value)), None)
    return None


def _key_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.dtype, value.device.type)
    if isinstance(value, list | tuple):
        return (*map(_key_of, value),)
    return value if value is None or isinstance(value, bool | int) else type(value).__name__


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
