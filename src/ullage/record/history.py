"""torch's private recording of memory history, shared between the program and ullage.

torch keeps one history. ullage turns it on before the first allocation and leaves it on; a program
that turns it on, off, or asks for a snapshot itself gets a view of it: what it would have got had
it been alone. All private names of torch's memory history are in this module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

Snapshot = dict[str, Any]
_ENABLED, _CONTEXTS, _STACKS = ("state", "all"), (None, "state", "alloc", "all"), ("python", "all")
MAX_ENTRIES = 2_000_000
"""Trace entries that ullage lets torch keep: some hundred bytes of host memory each."""


@dataclass(frozen=True, slots=True)
class View:
    """What the program asked for: the last `max_entries` from `start` (an index a device) on."""

    start: tuple[int, ...]
    max_entries: int
    skipped_actions: frozenset[str]
    has_frames: bool


class History:
    """The one history of a process: `install` before CUDA is initialised, `begin` once it is."""

    def __init__(self, torch: ModuleType) -> None:
        self._c = torch._C
        self._memory = torch.cuda.memory
        self._is_ours = False
        self._view: View | None = None
        self._record: Callable[..., None] = self._c._cuda_record_memory_history
        self._snapshot: Callable[..., Snapshot] = self._c._cuda_memorySnapshot

    def install(self) -> None:
        """Puts the program's calls behind the view."""
        self._c._cuda_record_memory_history = self._record_for_program
        self._c._cuda_memorySnapshot = self._snapshot_for_program

    def begin(self) -> None:
        """Starts ullage's own recording.

        By way of torch's Python function, which knows the arguments that its version of the C
        function takes. Stacks are taken where memory is allocated, not where it is freed: torch
        2.11 loses an exception that is on its way while it takes the stack of a free.
        """
        self._is_ours = True
        try:
            self._memory._record_memory_history(
                "all", context="alloc", stacks="python", max_entries=MAX_ENTRIES
            )
        finally:
            self._is_ours = False

    def snapshot(self) -> Snapshot:
        """Everything since `begin`."""
        return self._snapshot(None)

    def _record_for_program(self, *arguments: Any) -> None:
        enabled, context, stacks, max_entries = arguments[:4]
        if self._is_ours:
            self._record(*arguments)
            return
        if enabled is None:
            self._view = None
            self.begin()
            return
        if enabled not in _ENABLED or context not in _CONTEXTS or stacks not in _STACKS:
            self._record(*arguments)  # torch's own error for what it does not know
        clear, options = arguments[4:5], list(arguments[5:])
        skipped: frozenset[str] = frozenset()
        for index, option in enumerate(options):
            if isinstance(
                option, list
            ):  # actions that the program does not want to see; ullage does
                skipped, options[index] = frozenset(option), []
        taken = "all" if context == "all" else "alloc"
        self._record("all", taken, stacks, MAX_ENTRIES, *(False for _ in clear), *options)
        if self._view is None or any(clear):
            start = tuple(len(trace) for trace in self._snapshot(None)["device_traces"])
        else:
            start = self._view.start
        kept = max_entries if enabled == "all" else 0
        self._view = View(start, kept, skipped, has_frames=context is not None)

    def _snapshot_for_program(self, *arguments: Any) -> Snapshot:
        return visible(self._snapshot(*arguments), self._view)


def visible(snapshot: Snapshot, view: View | None) -> Snapshot:
    """What a program with this view sees of a snapshot; None: it has no history turned on."""
    live: set[int] = set()
    for device, trace in enumerate(snapshot["device_traces"]):
        start = len(trace) if view is None else _start(view, device)
        entries = trace[start:]
        if view is not None and entries and entries[0]["action"] == "snapshot":
            del entries[0]  # ullage's own look at where the view begins
        if view is not None and view.skipped_actions:
            entries = [entry for entry in entries if entry["action"] not in view.skipped_actions]
        if view is not None and len(entries) > view.max_entries:
            entries = entries[len(entries) - view.max_entries :]
        live |= _live(trace[start:])
        trace[:] = entries
    has_frames = view is not None and view.has_frames
    for segment in snapshot["segments"]:
        if not has_frames and "frames" in segment:
            segment["frames"] = []
        for block in segment["blocks"]:
            # A block that is older than the program's recording was allocated without a stack being
            # taken.
            if "frames" in block and not (has_frames and block["address"] in live):
                block["frames"] = []
    if not has_frames:
        for trace in snapshot["device_traces"]:
            for entry in trace:
                entry["frames"] = []
    return snapshot


def _start(view: View, device: int) -> int:
    return view.start[device] if device < len(view.start) else 0


def _live(entries: list[dict[str, Any]]) -> set[int]:
    live: set[int] = set()
    for entry in entries:
        if entry["action"] == "alloc":
            live.add(entry["addr"])
        elif entry["action"] == "free_completed":
            live.discard(entry["addr"])
    return live
