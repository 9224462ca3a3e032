"""Records what a process does with the memory of the GPU that is here.

    recorder = Recorder(torch, RecordingSettings(Path("run.pickle")))
    recorder.attach()
    ...                             # the program
    recorder.detach()               # writes the file; no hook is left

The file is a snapshot of PyTorch's with ullage's record, as `ullage run` leaves it. It is replaced
as a whole: at the end, when memory runs out, and after a step where a minute has passed, so that
the last state can be read whatever becomes of the process.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ullage.record import torch_internals
from ullage.record.allocator.counters import Counters
from ullage.record.allocator.event_hook import EventHook
from ullage.record.allocator.history import History
from ullage.record.allocator.ooms import OutOfMemories
from ullage.record.allocator.peaks import Peaks
from ullage.record.allocator.retention import Retention
from ullage.record.attached import attached, register_once
from ullage.record.entrances.settings import Mode, RecordingSettings
from ullage.record.owners import source_location
from ullage.record.owners.latest_holders import LatestHolders
from ullage.record.owners.modules import Modules
from ullage.record.owners.ownership import Claims
from ullage.record.patches import Patches
from ullage.record.pressure.gauge import PressureGauge
from ullage.record.process import host
from ullage.record.process.other_processes import count_others
from ullage.record.process.publication import Publication
from ullage.record.process.record_file import program_fields
from ullage.record.process.recording_file import RUNNING, RecordingFile
from ullage.record.steps.kernel_times import KernelTimes
from ullage.record.steps.removable_phases import RemovablePhases, optimizer_hooks
from ullage.record.steps.scaler_skips import ScalerSkips
from ullage.record.steps.step_peaks import StepPeaks
from ullage.record.steps.step_report import StepReport
from ullage.record.unseen import Unseen

if TYPE_CHECKING:
    from ullage.trace.record_schema import ExitFields

_ENTRY_BYTES = 512
"""Of host memory for an entry of torch's history with its stack: 290 to 420 were measured."""
_LOOKED_AT = frozenset(4**power for power in range(1, 16))  # steps after which holders are noted
_NO_HISTORY: dict[str, Any] = {"segments": [], "device_traces": []}


class Recorder:
    """From `attach` to `detach`, in a process that has imported torch."""

    def __init__(self, torch: ModuleType, settings: RecordingSettings) -> None:
        self.exit = _returned()
        self._torch: Any = torch
        self._settings = settings
        self._pid = os.getpid()
        self._started_s = time.time()
        self._patches = Patches()
        self._hook: EventHook | None = None
        self._history: History | None = None
        self._has_device = self.is_on = self._has_failed = False
        self._warnings: list[str] = []
        self._outside: dict[int, int] = {}
        self._num_others: list[int | None] = []
        limits = settings.limits
        self._modules = Modules(torch, limits.num_scopes)
        self._unseen = Unseen(torch, lambda _name, error: self.note_error(error))
        self._claims = Claims(torch, self._modules, self._unseen, self._patches)
        self._holders = LatestHolders(torch, max_rows=limits.num_holders)
        self.ooms = OutOfMemories(
            torch, self.look_at_holders, max_rows=limits.num_ooms, find_position=self._find_position
        )
        self._peaks = Peaks(torch)
        self._counters = Counters(torch, self._peaks)
        self._phases = RemovablePhases(
            torch, self._claims, self._modules,
            patches=self._patches, on_step=self._note_step, unseen=self._unseen,
        )  # fmt: skip
        self._phases.on_mark = self._note_mark
        self._retention = Retention(
            limits, self._phases, self._modules, self._claims, self._holders
        )
        self._step_peaks = StepPeaks(limits.num_steps)
        self._num_optimizer_steps = 0
        self._kernels = KernelTimes(torch) if settings.has_kernels else None
        self.pressure = PressureGauge(
            torch, self._peaks, self._counters, take_peak=self._take_peak,
            is_on=lambda: self.is_on and not self._has_failed, on_error=self.note_error,
        )  # fmt: skip
        self._skips = ScalerSkips(torch, self._count_optimizer_steps)
        self._publication = Publication(torch, self._peaks)
        self.report = StepReport(self._step_peaks, self._publication, self._skips, self.pressure)
        self._file = RecordingFile(settings.path, settings.flush_s)
        self._handle: Any = None

    @property
    def patches(self) -> Patches:
        """The attributes that are replaced now."""
        return self._patches

    @property
    def step_peaks(self) -> StepPeaks:
        """The peaks of the steps so far."""
        return self._step_peaks

    def attach(self) -> None:
        """Begins; where CUDA is not initialised yet, its part begins when it is.

        Raises:
            RuntimeError: this process is recorded already.
        """
        if attached:
            raise RuntimeError("this process is recorded already: detach that recording first")
        attached.append(self)
        self.is_on = True
        torch = self._torch
        self._peaks.install(self._patches)
        if self._settings.mode is not Mode.COUNTERS:
            self._begin_events()
        if self._hook is not None:
            self._phases.install()
        else:
            self._counters.install(self._patches)
            steps = optimizer_hooks(torch).register_optimizer_step_post_hook
            self._handle = steps(lambda *_: self._count_optimizer_step())
        self._skips.install(self._patches)
        self.pressure.watch_generation(self._patches)
        if self._settings.is_published:
            remark = self._publication.begin()
            self._warnings += [] if remark is None else [remark]
            atexit.register(self._publication.end)
        register_once(torch)
        torch.cuda._lazy_call(self._unseen.guard(self._begin))

    def _begin_events(self) -> None:
        """By the hook; where this torch cannot be hooked, PyTorch's own history has the events."""
        hook = EventHook(self._settings.event_ring_bytes)
        if hook.begin():
            self._hook = hook
        else:
            hook.end()
            self._warnings.append(
                "this torch reports its allocations in a way not known here: the events are those "
                "of PyTorch's own history; owners, modules and phases are not in the record"
            )
        if self._hook is None or self._settings.mode is Mode.FULL:
            self._history = History(self._torch, self._settings.stack_ring_bytes // _ENTRY_BYTES)
            self._history.can_have_stacks &= self._settings.mode is Mode.FULL
            self._history.install(self._patches)

    def _begin(self) -> None:
        """CUDA is initialised."""
        if not self.is_on or self._has_device or os.getpid() != self._pid:
            return
        self._has_device = True
        torch = self._torch
        with contextlib.suppress(RuntimeError):  # a device that others hold exclusively
            for index in range(torch.cuda.device_count()):
                self._outside[index] = record_document.outside_bytes(torch, index)
                self._num_others.append(count_others(torch, index))
        self._warnings += torch_internals.list_losses(torch)
        if self._settings.mode is Mode.COUNTERS:
            return
        if self._hook is not None and not self._modules.begin():
            self._warnings.append(
                f"torch {torch.__version__} numbers autograd nodes in a way not known here: what "
                "backward allocates has no module"
            )
        # Before the history begins: its first entry would be this look at the blocks.
        has_blocks = self._hook is not None and self._hook.note_blocks(torch.cuda.memory_snapshot)
        if self._history is not None and torch.cuda.get_allocator_backend() == "native":
            try:
                self._history.begin()
            except (TypeError, RuntimeError) as error:
                self._history = None
                self._warnings.append(f"there are no stacks: {error}")
        if has_blocks:
            self._claims.claim_everything()

    # ---- While it runs -----------------------------------------------------------------------

    def step(self) -> None:
        """A step has ended, in a program whose steps end with no optimizer."""
        if self._hook is None:
            self._note_step(self._step_peaks.num_steps + 1)
        elif self.is_on:
            self._phases.steps.end_by_program()

    def _count_optimizer_steps(self) -> int:
        return self._num_optimizer_steps + self._phases.num_optimizer_steps

    def _count_optimizer_step(self) -> None:
        self._num_optimizer_steps += 1
        self._note_step(self._step_peaks.num_steps + 1)

    def _note_step(self, count: int) -> None:
        if self.is_on and not self._has_failed:
            try:
                if self._has_device and self._hook is not None and count in _LOOKED_AT:
                    self._holders.look()
                self._go_on(self.report.end_step)
                if self._kernels is not None:
                    self._kernels.end_step(count)
                if self._file.is_due:
                    self._write(RUNNING)
            except Exception as error:  # the program goes on, whatever becomes of its record
                self.note_error(error)

    def _note_mark(self, kind: str) -> None:
        if self.is_on and not self._has_failed:
            try:
                self._go_on(functools.partial(self.report.note_mark, kind))
            except Exception as error:
                self.note_error(error)

    def _go_on(self, report: Callable[[], None]) -> None:
        """At a step or a mark: says so, and keeps what grows in its bounds."""
        if self._has_device:
            report()
        if self._hook is not None:
            self._retention.apply(self._hook)

    def _take_peak(self, device: int) -> tuple[int, int]:
        if self._hook is None:
            return self._counters.take(device)
        return self._hook.take_peak(device)

    def note_error(self, error: Exception) -> None:
        """Something of ours failed: steps and phases end, and the record says so, once."""
        if self._has_failed:
            return
        self._has_failed = True
        self._phases.end_early()
        self._warnings.append(
            f"the recording ended early, as a callback of ullage failed: {type(error).__name__}: "
            f"{error}"
        )

    def _find_position(self) -> int:
        return 0 if self._hook is None else self._phases.here()

    def look_at_holders(self) -> None:
        """Notes who holds what now."""
        if self._hook is not None:
            self._claims.claim_everything()
            self._holders.look()

    def note_oom(self, device: int, requested: int, total: int, free: int) -> None:
        """torch's observer: an allocation has failed. The file is written now: what comes next may
        be the end.
        """
        if not self.is_on or os.getpid() != self._pid:
            return
        try:
            self.ooms.note(device, requested, total, free)
            self.report.publish(is_due=True)
            if self._file.is_affordable or len(self.ooms.rows) == 1:
                self._write(RUNNING, is_looked_at=self.ooms.is_looked_at)
        except Exception as error:
            self.note_error(error)

    # ---- How it ends -------------------------------------------------------------------------

    def note_exception(self, error: BaseException) -> None:
        """An exception that ends the program, or what is recorded of it."""
        kind = type(error)
        where = source_location.of_traceback(error.__traceback__)
        self.exit = {
            "kind": "exception",
            "exception": f"{kind.__module__}.{kind.__qualname__}",
            "message": str(error),
            "where": where,
            "code": 1,
        }
        self.ooms.note_exception(error, where)

    def note_signal(self, number: int) -> None:
        """A signal that ends the program."""
        self.exit = self.exit | {"kind": "signal", "code": 128 + number}

    def note_exit(self, code: int) -> None:
        """A call that ends the program at once."""
        if self.exit["kind"] == "returned":
            self.exit = self.exit | {"kind": "system_exit", "code": code}

    def finish(self) -> None:
        """Writes the file and detaches; once, and only in the process that attached."""
        if self.is_on and os.getpid() == self._pid:
            self.detach()

    def detach(self) -> Path | None:
        """Writes the file and takes every hook out; returns the file, None where none was written:
        no device was used, no path was given, or the disk took nothing, which is said on stderr.
        """
        if not self.is_on:
            return None
        if self._kernels is not None:
            self._kernels.close()
        path = self._write()
        self.is_on = False
        self._take_out()
        return path

    def _take_out(self) -> None:
        self._phases.remove()
        if self._handle is not None:
            self._handle.remove()
        left = self._patches.undo()
        if self._history is not None and self._has_device:
            self._history.end()
        if self._hook is not None:
            self._hook.end()
        self._counters.restore()
        self._publication.end()
        atexit.unregister(self._publication.end)
        attached.clear()
        if left:
            names = ", ".join(left)
            print(f"ullage: others have replaced {names} since: that stays", file=sys.stderr)

    def abandon(self) -> None:
        """In a forked child: what it does is not this process's."""
        self.is_on = False
        self._phases.remove()
        if self._handle is not None:
            self._handle.remove()
        self._patches.undo()
        if self._hook is not None:
            self._hook.pause_in_child()
        attached.clear()

    # ---- The file ----------------------------------------------------------------------------

    def _write(self, remark: str | None = None, *, is_looked_at: bool = False) -> Path | None:
        if not self._has_device:
            return None
        snapshot = functools.partial(self.snapshot, remark, is_looked_at=is_looked_at)
        return self._file.write(snapshot)

    def snapshot(self, remark: str | None = None, *, is_looked_at: bool = False) -> dict[str, Any]:
        """What is known by now: torch's snapshot with our record.

        is_looked_at: the holders were noted at this very moment.
        """
        if not is_looked_at:
            self.look_at_holders()
        history = self._history.snapshot() if self._history is not None else _NO_HISTORY
        record_document.forget_annotations(history)
        record = self._record(remark)
        if self.ooms.rows and self._history is not None:
            record["attempts"] = self.ooms.attempts(history)
        return history | {"ullage": record}

    def _record(self, remark: str | None) -> dict[str, Any]:
        ring = None if self._hook is None else self._hook.ring()
        num_lost = 0 if self._hook is None else self._hook.num_lost
        if ring is not None:
            self._retention.keep_from(ring)
        torch, mode, kernels = self._torch, self._settings.mode.value, self._kernels
        return {
            **program_fields(torch, self._started_s, self.exit),
            "host_needed_bytes": host.peak_bytes(),
            **record_document.event_fields(ring),
            "devices": record_document.device_fields(torch, self._peaks, self._outside),
            "marks": [list(mark) for mark in self._phases.whole_marks()],
            "modules": self._modules.names(),
            "claims": [list(claim) for claim in self._claims.rows()],
            **record_document.usage_fields(
                self._hook, ring, self._phases.batch_waits, self._settings.limits.num_workspaces
            ),
            **self._holders.columns(),
            "ooms": self.ooms.rows,
            "warnings": [
                *self._warnings,
                *self._retention.remarks(),
                *record_document.remarks(num_lost, remark),
                *([] if kernels is None or kernels.remark is None else [kernels.remark]),
            ],
            "measured": record_document.measured_fields(
                mode,
                num_lost,
                self._step_peaks,
                self._num_others,
                self.pressure.fields(),
                kernels=None if kernels is None else kernels.rows,
            ),
        }


def _returned() -> ExitFields:
    """How a program ends that is not said to end otherwise."""
    return {"kind": "returned", "exception": None, "message": None, "where": None, "code": 0}
