"""Records what a process does with the memory of a GPU: a simulated one, or that which is here.

    recorder = record_gpu(torch, RecordingSettings(Path("run.pickle")))     # or record_run
    recorder.attach()
    ...                             # the program
    recorder.detach()               # writes the record; no hook is left

An entrance (`entrances/simulated_gpu.py`, `entrances/real_gpu.py`) makes the list of parts that are
noted; what every record has is here, and the order in which things happen.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from ullage.players.inside import library, torch_internals
from ullage.players.inside.allocator.history import NO_HISTORY, History
from ullage.players.inside.allocator.ooms import OutOfMemories
from ullage.players.inside.allocator.peaks import Peaks
from ullage.players.inside.attached import attached, register_once
from ullage.players.inside.owners import source_location
from ullage.players.inside.owners.holders import Holders
from ullage.players.inside.owners.modules import Modules
from ullage.players.inside.owners.ownership import Claims
from ullage.players.inside.part import Part
from ullage.players.inside.patches import Patches
from ullage.players.inside.process import host
from ullage.players.inside.process.record_file import (
    RUNNING,
    RecordFile,
    lift_limits,
    program_fields,
    undisturbed,
    write_whole,
)
from ullage.players.inside.steps.phases import Phases
from ullage.players.inside.unseen import Unseen

if TYPE_CHECKING:
    from ullage.ground.protocol.run import RunVariables
    from ullage.log.record_schema import EventColumns, ExitFields, StopFields
    from ullage.players.inside.entrances.settings import RowLimits
    from ullage.players.inside.steps.steps import StepKind

_LOOKED_AT = frozenset(4**power for power in range(1, 16))  # steps after which holders are noted
_NO_EVENTS: EventColumns = {
    "address": b"", "bytes": b"", "reserved": b"", "scope": b"", "device": b"", "kind": b"",
}  # fmt: skip
PartKind = TypeVar("PartKind", bound=Part)


class Recorder:
    """From `attach` to `detach`, in a process that has imported torch.

    Args:
        torch: the module.
        file: where the record goes.
        history: torch's own, which has the stacks; it is a part where it is wanted from the start.
        limits: of rows that grow with the program; None: there are none.
        is_run: this is a process of `ullage run`, from the import of torch to its end. A process
            that it forks before it uses a device is recorded too, and what fails of ours is left
            out alone. Elsewhere the recording ends with the first failure of ours: the program has
            to go on as if nobody looked.
        max_steps: after how many the program ends; None: when it likes.

    Attributes:
        parts: what is noted, in its order.
        has_events: whether the allocator's events are noted, with owners, modules and phases.
        has_holders: whether it is noted, too, which variables hold tensors.
        left: of a recording that has ended, what others have replaced since: that stays.

    Raises:
        RuntimeError: this process is recorded already.
    """

    def __init__(
        self,
        torch: ModuleType,
        file: RecordFile,
        history: History,
        *,
        limits: RowLimits | None = None,
        is_run: bool = False,
        max_steps: int | None = None,
    ) -> None:
        if attached:
            raise RuntimeError("this process is recorded already: detach that recording first")
        self.exit: ExitFields = {
            "kind": "returned", "exception": None, "message": None, "where": None, "code": 0,
        }  # fmt: skip
        self.parts: list[Part] = []
        self.has_events = self.has_holders = True
        self.patches = Patches()
        self.warnings: list[str] = []
        self.left: list[str] = []
        self.shapes = source_location.ShapeReads()
        self.file = file
        self.is_on = self.has_device = self.has_failed = False
        self._torch: Any = torch
        self._history = history
        self._is_run = is_run
        self._pid, self._started_s = os.getpid(), time.time()
        self._writing = threading.RLock()  # another thread may be at it
        self._num_steps = 0
        self.unseen = Unseen(torch, self.note_failure)
        self.modules = Modules(torch, None if limits is None else limits.num_scopes)
        self.claims = Claims(torch, self.modules, self.unseen, self.patches)
        self.holders = Holders(torch, None if limits is None else limits.num_holders)
        self.ooms = OutOfMemories(
            torch, self._look_at_failure, None if limits is None else limits.num_ooms,
            lambda: library.position() if self.has_events else 0,
        )  # fmt: skip
        self.peaks = Peaks(torch)
        self.phases = Phases(
            torch, self.claims, self.modules, self.unseen,
            is_from_import=is_run, max_steps=max_steps,
            on_mark=self._note_mark, on_step=self._note_step, on_stop=self._note_stop,
        )  # fmt: skip

    def find(self, kind: type[PartKind]) -> PartKind | None:
        """The part of a kind; None: it is not noted."""
        return next((part for part in self.parts if isinstance(part, kind)), None)

    def attach(self) -> None:
        """Begins; where CUDA is not initialised yet, its part begins when it is."""
        attached.append(self)
        self.is_on = True
        # Most parts care about none of these, which come many times in a step.
        self._told_of_marks = self._overriding("note_mark")
        self._told_of_steps = self._overriding("end_step")
        self._each("install", self.patches)
        register_once(self._torch)
        self._torch.cuda._lazy_call(self.unseen.guard(self._begin))

    def _overriding(self, method: str) -> list[Part]:
        return [each for each in self.parts if getattr(type(each), method) != getattr(Part, method)]

    def _each(self, method: str, *arguments: object, parts: list[Part] | None = None) -> list[Any]:
        """The answers of the parts, without those that raise."""
        answers = []
        for part in self.parts if parts is None else parts:
            try:
                answers.append(getattr(part, method)(*arguments))
            except Exception as error:  # the program goes on, whatever becomes of its record
                self.note_failure(f"{type(part).__name__}.{method}", error)
        return answers

    def _begin(self) -> None:
        """CUDA is initialised."""
        if self.is_on and not self.has_device and os.getpid() == self._pid:
            self.has_device = True
            self.warnings += torch_internals.list_losses(self._torch)
            self._each("begin")

    # ---- While it runs -----------------------------------------------------------------------

    def step(self) -> None:
        """A step has ended, in a program whose steps end with no optimizer."""
        if not self.is_on:
            return
        if self.has_events:
            self.phases.steps.end_by_program()
        else:
            self._num_steps += 1
            self._note_step(self._num_steps)

    def _note_step(self, count: int) -> None:
        if self.is_on and not self.has_failed:
            if self.has_device and self.has_events and self.has_holders and count in _LOOKED_AT:
                self.unseen.run("look", self.holders.look)
            self._each("end_step", count, parts=self._told_of_steps)
            if self.file.is_due:
                self._write(RUNNING)

    def _note_mark(self, kind: str) -> None:
        if self.is_on and not self.has_failed:
            self._each("note_mark", kind, parts=self._told_of_marks)

    def _note_stop(self, num_steps: int, kind: StepKind) -> None:
        """The program is ended after this many steps."""
        steps: StopFields = {"count": num_steps, "kind": kind.value}
        self.exit = self.exit | {"kind": "steps_reached", "steps": steps}

    def note_failure(self, name: str, error: Exception) -> None:
        """Something of ours failed: the basis has it."""
        self.shapes.note(f"{name} not followed", 0, f"unknown ({type(error).__name__})")
        if not self._is_run and not self.has_failed:
            self.has_failed = True
            self.phases.end_early()
            self.warnings.append(
                f"the recording ended early, as a callback of ullage failed: "
                f"{type(error).__name__}: {error}"
            )

    def look(self) -> None:
        """Notes who holds what now."""
        if self.has_events:
            self.unseen.run("claim_everything", self.claims.claim_everything)
            if self.has_holders:
                self.unseen.run("look", self.holders.look)

    def _look_at_failure(self) -> None:
        """Who holds what where memory ran out; stacks tell from then on what is tried again."""
        self.look()
        if self._is_run and not self._history.is_on:
            with contextlib.suppress(TypeError, RuntimeError):
                self._history.turn_on()

    def note_oom(self, device: int, requested: int, total: int, free: int) -> None:
        """torch's observer: an allocation has failed. The file is written now, where it is written
        while the program runs: what comes next may be the end.
        """
        if self.is_on and os.getpid() == self._pid:
            self.ooms.note(device, requested, total, free)
            self._each("note_oom")
            if self.file.is_live and (self.file.is_affordable or len(self.ooms.rows) == 1):
                self._write(RUNNING, is_looked_at=self.ooms.is_looked_at)

    # ---- How it ends -------------------------------------------------------------------------

    def note_exception(self, error: BaseException) -> None:
        """An exception that ends the program, or what is recorded of it."""
        kind = type(error)
        self.exit = {
            "kind": "exception",
            "exception": f"{kind.__module__}.{kind.__qualname__}",
            "message": str(error),
            "where": source_location.of_traceback(error.__traceback__),
            "code": 1,
        }
        self._each("note_exception", error)
        self.ooms.note_exception(error, self.exit["where"])

    def note_signal(self, number: int) -> None:
        """A signal that ends the program."""
        self.exit = self.exit | {"kind": "signal", "code": 128 + number}

    def note_exit(self, code: int) -> None:
        """A call that ends the program at once."""
        if self.exit["kind"] == "returned":
            self.exit = self.exit | {"kind": "system_exit", "code": code}

    def finish(self) -> None:
        """The process ends: writes the record, and detaches; once, and only in the process that
        attached.
        """
        with self._writing:
            if self.is_on and self.has_device and os.getpid() == self._pid:
                lift_limits()
                with undisturbed():
                    self.detach()

    def detach(self) -> Path | None:
        """Writes the record and takes every hook out; returns the file, None where none was
        written: no device was used, no path was given, or the disk took nothing.
        """
        with self._writing:
            if not self.is_on:
                return None
            self.is_on = False
            self._each("close")
            path = self._write()
            self.step_aside()
            return path

    def step_aside(self) -> None:
        """Takes every hook out: what follows is not the program's, and is not recorded."""
        self.is_on = False
        self._each("remove", parts=self.parts[::-1])
        attached.clear()
        self.left = self.patches.undo()

    def leave(self) -> None:
        """In a forked process: what it does is not this process's. It may turn to a device itself
        where this process has not.
        """
        if self._is_run and not self.has_device:
            self._pid, self._started_s = os.getpid(), time.time()
            self._each("prepare")
            return
        self.is_on = False
        self._each("leave", parts=self.parts[::-1])
        self.patches.undo()
        attached.clear()

    def go_on_as(self, run: RunVariables) -> None:
        """In a copy of this process that no handler of forks has seen: it is a run of its own from
        here on.
        """
        self._pid = os.getpid()
        self._each("go_on_as", run)

    # ---- The record --------------------------------------------------------------------------

    def show(self, path: Path) -> bool:
        """Writes a snapshot of what is known by now, and goes on; False: no device was used."""
        if self.has_device:
            write_whole(path, self.snapshot())
        return self.has_device

    def snapshot(self) -> dict[str, Any]:
        """Torch's snapshot by now, with our record."""
        record = self._record(None)
        return self._history_for(record, is_wanted=True) | {"ullage": record}

    def _write(self, remark: str | None = None, *, is_looked_at: bool = False) -> Path | None:
        if not self.has_device:
            return None
        return self.file.write(lambda: self._contents(remark, is_looked_at=is_looked_at))

    def _contents(
        self, remark: str | None, *, is_looked_at: bool
    ) -> Iterator[tuple[Path, dict[str, Any]]]:
        """The files with their contents: of the record alone, or of torch's snapshot with it."""
        record = self._record(remark, is_looked_at=is_looked_at)
        paths = self.file.find_paths()
        is_wanted = any(has_snapshot for _, has_snapshot in paths)
        history = self._history_for(record, is_wanted=is_wanted)
        for path, has_snapshot in paths:
            yield path, history | {"ullage": record} if has_snapshot else record

    def _history_for(self, record: dict[str, Any], *, is_wanted: bool) -> dict[str, Any]:
        """torch's snapshot; of failures, the record gets from it what else was tried."""
        history = self._history.snapshot() if is_wanted or self.ooms.rows else NO_HISTORY
        if self.ooms.rows and (self._is_run or self._history.is_on):
            record["attempts"] = self.ooms.attempts(history)
        return history

    def _record(self, remark: str | None, *, is_looked_at: bool = False) -> dict[str, Any]:
        """The record of now.

        remark: of a record that is not the last.
        is_looked_at: the holders were noted at this very moment.
        """
        if not is_looked_at:
            self.look()
        self._each("prepare")
        record: dict[str, Any] = {
            **program_fields(self._torch, self._started_s, self.exit),
            "host_needed_bytes": host.peak_bytes(),
            "devices": [self._describe(index) for index in range(self._torch.cuda.device_count())],
            "first_position": 0,
            "events": _NO_EVENTS,
            "marks": [list(mark) for mark in self.phases.whole_marks()],
            "modules": self.modules.names(),
            "claims": [list(claim) for claim in self.claims.rows()],
            "workspaces": [],
            **self.holders.columns(),
            "ooms": self.ooms.rows,
            "basis": self.shapes.basis(),
        }
        for fields in self._each("fields"):
            for name, value in fields.items():
                if name in record and isinstance(value, dict):
                    value = record[name] | value
                elif name == "basis":
                    value = record[name] + value
                record[name] = value
        remarks = [text for texts in self._each("remarks") for text in texts]
        record["warnings"] = [*self.warnings, *remarks, *filter(None, [remark])]
        self._each("go_on")
        return record

    def _describe(self, index: int) -> dict[str, Any]:
        fields: dict[str, Any] = {**self.peaks.describe(index)}
        for of_part in self._each("device_fields", index):
            fields |= of_part
        return fields
