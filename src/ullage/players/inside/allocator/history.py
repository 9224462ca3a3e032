"""torch's private recording of memory history, shared between the program and ullage.

torch keeps one history. ullage turns it on before the first allocation and leaves it on; a program
that turns it on, off, or asks for a snapshot itself gets a view of it: what it would have got had
it been alone. All private names of torch's memory history are in this module.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ullage.players.inside.owners import notebook, source_location
from ullage.players.inside.part import Part
from ullage.players.inside.patches import Patches

Snapshot = dict[str, Any]
_ENABLED, _CONTEXTS, _STACKS = ("state", "all"), (None, "state", "alloc", "all"), ("python", "all")
NO_HISTORY: Snapshot = {"segments": [], "device_traces": []}
"""Where it is not wanted, or another allocator's."""
_MAX_ENTRIES = 2_000_000
"""Trace entries that ullage lets torch keep: some hundred bytes of host memory each."""


@dataclass(frozen=True, slots=True)
class View:
    """The program's request: the last `max_entries` from `start` (an index a device) on."""

    start: tuple[int, ...]
    max_entries: int
    skipped_actions: frozenset[str]


@dataclass(frozen=True, slots=True)
class Window:
    """While the program had stacks taken, of what is live or of entries, too; end None: it has."""

    start: tuple[int, ...]
    is_of_entries: bool
    end: tuple[int, ...] | None = None

    def holds(self, device: int, index: int) -> bool:
        """True if an entry of a device's trace came while it was open."""
        is_over = self.end is not None and index >= _index(self.end, device)
        return _index(self.start, device) <= index and not is_over


class History(Part):
    """The one history of a process: `install` before CUDA is initialised, `begin` once it is.

    Args:
        torch: the module.
        max_entries: where the oldest are to go; None: a run has few enough.
        has_stacks: whether they are taken.

    Attributes:
        is_on: whether ullage's recording has begun.
    """

    def __init__(
        self, torch: ModuleType, max_entries: int | None = None, *, has_stacks: bool = True
    ) -> None:
        self.is_on = False
        self._torch: Any = torch
        self._max_entries = max_entries
        self._remarks: list[str] = []
        self._c = torch._C
        self._memory = torch.cuda.memory
        self._is_ours = False
        self._has_stacks = has_stacks and _are_texts([*_directory(), *sys.argv[:1], *sys.path])
        self._lacks_letters = has_stacks and not self._has_stacks
        self._view: View | None = None
        self._windows: list[Window] = []
        self._record: Callable[..., None] = self._c._cuda_record_memory_history
        self._snapshot: Callable[..., Snapshot] = self._c._cuda_memorySnapshot
        self._take_snapshot: Callable[[], Snapshot] = self._memory._snapshot

    def install(self, patches: Patches) -> None:
        """Puts the program's calls behind the view."""
        patches.replace(self._c, "_cuda_record_memory_history", self._record_for_program)
        patches.replace(self._c, "_cuda_record_memory_history_legacy", self._record_as_of_old)
        patches.replace(self._c, "_cuda_memorySnapshot", self._snapshot_for_program)
        patches.replace(self._c, "_cuda_isHistoryEnabled", lambda: self._view is not None)

    def begin(self) -> None:
        """Starts ullage's own recording, of torch's own allocator."""
        if self._torch.cuda.get_allocator_backend() != "native":
            return
        if self._lacks_letters:
            self._remarks.append(
                "the snapshot has no stacks: the locale has no letters for the names of files "
                "here; set PYTHONUTF8=1, or a locale of UTF-8"
            )
        try:
            self.turn_on()
        except (TypeError, RuntimeError) as error:
            self._remarks.append(
                f"torch {self._torch.__version__} records memory history in a way not known here "
                f"({error}): the snapshot has none"
            )

    def turn_on(self) -> None:
        """Starts it, or starts it again.

        By way of torch's Python function, which knows the arguments that its version of the C
        function takes. Stacks are taken where memory is allocated, not where it is freed: torch
        2.11 loses an exception that is on its way while it takes the stack of a free. None are
        taken where the names of files are not texts: torch could not write the snapshot then.
        """
        context = "alloc" if self._has_stacks else None
        with self._ours():
            self._memory._record_memory_history(
                "all",
                context=context,
                stacks="python",
                max_entries=self._max_entries or _MAX_ENTRIES,
            )
        self.is_on = True

    def remarks(self) -> list[str]:
        """The reason why there are no stacks, or there is no history."""
        return self._remarks

    def remove(self) -> None:
        """Stops ullage's own recording, but for that of a run, which ends with its process; a
        program that has turned it on itself keeps it on.
        """
        if self._view is None and self.is_on and self._max_entries is not None:
            with self._ours():
                self._memory._record_memory_history(None)

    def leave(self) -> None:
        """It is the other process's."""

    def snapshot(self) -> Snapshot:
        """Everything since it was turned on; by way of torch's Python function, too."""
        if not self.is_on:
            return dict(NO_HISTORY)
        with self._ours():
            snapshot = self._take_snapshot()
        if self._max_entries is not None:
            _forget_annotations(snapshot)
        return snapshot

    @contextlib.contextmanager
    def _ours(self) -> Iterator[None]:
        """While ullage itself calls torch's Python functions."""
        self._is_ours = True
        try:
            yield
        finally:
            self._is_ours = False

    def _look(self, *arguments: Any) -> Snapshot:
        """A snapshot, without importing the compiler.

        torch asks torch._inductor for the stacks of what it generated; where it is not loaded, it
        generated nothing, and an empty stand-in says the same without the seconds of its import.
        """
        if "torch._inductor" in sys.modules:
            return without_ours(self._snapshot(*arguments))
        self._torch._inductor = ModuleType("torch._inductor")
        try:
            return without_ours(self._snapshot(*arguments))
        finally:
            del self._torch._inductor

    def _record_for_program(self, *arguments: Any) -> None:
        enabled, context, stacks, max_entries = arguments[:4]
        if self._is_ours:
            self._record(*arguments)
            return
        if enabled is None:
            self._view = None
            self._close_window(self._lengths())
            self.turn_on()
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
        max_kept = self._max_entries or _MAX_ENTRIES
        self._record("all", taken, stacks, max_kept, *(False for _ in clear), *options)
        now = self._lengths()
        start = now if self._view is None or any(clear) else self._view.start
        # torch keeps one entry where the program asks for the state alone.
        self._view = View(start, max_entries if enabled == "all" else 1, skipped)
        self._close_window(now)
        if context is not None:
            self._windows.append(Window(now, context != "state"))

    def _record_as_of_old(
        self,
        enabled: bool,  # noqa: FBT001 - torch calls it by position
        *flags: Any,
    ) -> None:
        """torch's older call, with flags in place of names; what follows them is the same."""
        stacks_of_live, max_entries, stacks_of_entries, has_cpp_stacks, *options = flags
        context = "alloc" if stacks_of_entries else "state" if stacks_of_live else None
        stacks = "all" if has_cpp_stacks else "python"
        self._record_for_program("all" if enabled else None, context, stacks, max_entries, *options)

    def _lengths(self) -> tuple[int, ...]:
        with self._ours():
            return tuple(len(trace) for trace in self._take_snapshot()["device_traces"])

    def _close_window(self, now: tuple[int, ...]) -> None:
        if self._windows and self._windows[-1].end is None:
            self._windows[-1] = replace(self._windows[-1], end=now)

    def _snapshot_for_program(self, *arguments: Any) -> Snapshot:
        snapshot = self._look(*arguments)
        return snapshot if self._is_ours else visible(snapshot, self._view, self._windows)


def visible(snapshot: Snapshot, view: View | None, windows: Sequence[Window] = ()) -> Snapshot:
    """The part of a snapshot that a program with this view sees; None: it has no history turned on.

    What is live keeps the stack that was taken in one of the program's windows, open or not.
    """
    _hide_stacks(snapshot, windows)
    bounds = [bound for w in windows for bound in (w.start, w.end) if bound is not None]
    stacks = [w for w in windows if w.is_of_entries]
    for device, trace in enumerate(snapshot["device_traces"]):
        if view is None:
            trace.clear()
            continue
        start, entries = _index(view.start, device), []
        looks = {start, *(_index(bound, device) for bound in bounds)}
        for index, entry in enumerate(trace[start:], start):
            if not any(w.holds(device, index) for w in stacks):
                entry["frames"] = []
            # Not ullage's own looks at where the view and its windows begin and end.
            is_own = index in looks and entry["action"] == "snapshot"
            if not is_own and entry["action"] not in view.skipped_actions:
                entries.append(entry)
        trace[:] = entries[max(0, len(entries) - view.max_entries) :]
    return snapshot


def without_ours(snapshot: Snapshot) -> Snapshot:
    """Takes ullage out of every stack: its own frames, and those of torch's that it called. A cell
    of a notebook gets its number in place of the file that IPython makes up, and a temporary file
    that is gone is named as code without a file. Equal stacks become one list, which is looked at,
    and written to a file, once.
    """
    holders = [entry for trace in snapshot["device_traces"] for entry in trace]
    holders += snapshot["segments"]
    holders += [block for segment in snapshot["segments"] for block in segment["blocks"]]
    stacks = _share_stacks(holders)
    # torch makes one dict of each place, so most of them are looked at once.
    places = {id(frame): frame["filename"] for stack in stacks for frame in stack}
    names = {file: notebook.cell_name(file) or _gone(file) for file in set(places.values())}
    for frame in (frame for stack in stacks for frame in stack) if any(names.values()) else ():
        frame["filename"] = names.get(frame["filename"]) or frame["filename"]
    ours = {number for number, filename in places.items() if source_location.is_ours(filename)}
    for stack in stacks if ours else ():
        if ours.isdisjoint(map(id, stack)):
            continue
        entries: list[dict[str, Any]] = []
        for frame in stack:  # innermost first: what ullage called comes before it
            if id(frame) in ours:
                while entries and entries[-1]["filename"].endswith(source_location.OPS):
                    entries.pop()
            else:
                entries.append(frame)
        stack[:] = entries
    return snapshot


def _gone(filename: str) -> str | None:
    """The name of a temporary file that is not there any more: "<made.py>"."""
    # Not gettempdir(), which would try the directory by a file of its own.
    is_temporary = filename.startswith(f"{tempfile.tempdir or '/tmp'}{os.sep}")
    is_left = not is_temporary or notebook.is_typed(filename) or Path(filename).exists()
    return None if is_left else f"<{Path(filename).name}>"


def _share_stacks(holders: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The stacks that differ; a holder of one that was there before gets that one's list."""
    stacks: dict[tuple[int, ...], list[dict[str, Any]]] = {}
    # By both ends and the length: a program in its steps has few stacks that are alike in these,
    # and to compare two costs less than the places of all frames as a key.
    latest: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
    for holder in holders:
        stack = holder.get("frames")
        if not stack:
            continue
        ends = (id(stack[0]), id(stack[-1]), len(stack))
        other = latest.get(ends)
        if other != stack:
            other = latest[ends] = stacks.setdefault(tuple(map(id, stack)), stack)
        holder["frames"] = other
    return list(stacks.values())


def _directory() -> list[str]:
    try:
        return [str(Path.cwd())]
    except OSError:  # it is gone
        return []


def _are_texts(paths: Sequence[str]) -> bool:
    """True if paths can be written: bytes that the locale has no letters for are read as halves of
    surrogate pairs.
    """
    try:
        for path in paths:
            path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _index(indices: tuple[int, ...], device: int) -> int:
    """The index of a device; 0 for one that was not there yet."""
    return indices[device] if device < len(indices) else 0


def _hide_stacks(snapshot: Snapshot, windows: Sequence[Window]) -> None:
    """Takes the stacks off blocks and segments that came while only ullage had stacks taken."""
    traces = snapshot["device_traces"]
    births = [_births(trace, ("alloc",)) for trace in traces]
    segment_births = [_births(trace, ("segment_alloc", "segment_map")) for trace in traces]
    for segment in snapshot["segments"]:
        device = segment["device"]
        blocks = [(segment_births[device], segment)]
        blocks += [(births[device], block) for block in segment["blocks"]]
        for born, holder in blocks:
            index = born.get(holder["address"], -1)
            if "frames" in holder and not any(w.holds(device, index) for w in windows):
                holder["frames"] = []


def _births(trace: list[dict[str, Any]], actions: tuple[str, ...]) -> dict[int, int]:
    """The index of the last entry that brought each address."""
    return {entry["addr"]: index for index, entry in enumerate(trace) if entry["action"] in actions}


def _forget_annotations(snapshot: Snapshot) -> None:
    """Takes the annotations out that are older than the events: torch keeps as many of them as of
    events, and each step makes some.
    """
    times = [trace[0].get("time_us", 0) for trace in snapshot["device_traces"] if trace]
    rows = snapshot.get("external_annotations")
    if times and rows:
        first = min(times)
        snapshot["external_annotations"] = [
            row for row in rows if row.get("time_us", first) >= first
        ]
