"""One watched process: what is switched on when torch arrives, and the record at its end."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ullage.record import library, torch_internals
from ullage.record.allocator.history import History
from ullage.record.allocator.ooms import OutOfMemories
from ullage.record.allocator.peaks import Peaks
from ullage.record.one_rank import lone_rank
from ullage.record.owners import source_location
from ullage.record.owners.holders import Holders
from ullage.record.owners.modules import Modules
from ullage.record.owners.ownership import Claims
from ullage.record.process import host, levels
from ullage.record.process.record_file import (
    lift_limits,
    program_fields,
    undisturbed,
    write_whole,
)
from ullage.record.process.request_to_end import wait_for_request
from ullage.record.process.settings import Settings
from ullage.record.requests import requests
from ullage.record.steps.compiled import Compiled
from ullage.record.steps.compiler import defer_import
from ullage.record.steps.phases import Phases
from ullage.record.steps.steps import StepKind
from ullage.record.steps.work_log import WorkLog
from ullage.record.unseen import Unseen
from ullage.record.values import autotune
from ullage.record.values.kernels import Kernels
from ullage.record.values.suspects import suspicions
from ullage.record.values.values import Values
from ullage.record.weights.weights import SkippedWeights

if TYPE_CHECKING:
    from ullage.record.weights.dummy_vision_weights import MadeUpVision
    from ullage.record.weights.dummy_weights import MadeUpWeights
    from ullage.trace.record_schema import (
        BasisFields,
        EventColumns,
        ExitFields,
        OptionalFields,
        RecordFields,
        StopFields,
    )

_UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
_RESERVE_BYTES = 64 << 20  # of address space, given back for the record where memory ran out
_NO_HISTORY: dict[str, Any] = {"segments": [], "device_traces": []}  # not wanted, or another's
_LOOKED_AT = frozenset(4**power for power in range(1, 16))  # steps after which holders are noted


class Session:
    """Lives from torch's import to the end of the process."""

    def __init__(self, torch: ModuleType, settings: Settings) -> None:
        self.exit: ExitFields = {
            "kind": "returned", "exception": None, "message": None, "where": None, "code": 0,
        }  # fmt: skip
        self._torch = torch
        self._settings = settings
        self._pid = os.getpid()
        self._started_s = time.time()
        self._is_forked = self._is_written = False
        self._writing = threading.RLock()  # another thread may be at it
        self._has_device = self._has_history = False
        self._reserve: mmap.mmap | None = None
        self._mark: Path | None = None
        self._reads = source_location.HostReads()
        self._warnings: list[str] = []
        self._groups: list[list[int]] = []
        self._weights = SkippedWeights(torch, is_on=not settings.has_real_init)
        self._history = History(torch)
        self._peaks = Peaks(torch)
        self._modules = Modules(torch)
        self._unseen = Unseen(torch, self._note_own_failure)
        self._claims = Claims(torch, self._modules, self._unseen)
        self._made_up: tuple[MadeUpWeights | MadeUpVision, ...] = ()
        self._holders = Holders(torch, is_on=settings.has_snapshot)
        self.ooms = OutOfMemories(torch, self._look_at_failure)
        self._values = Values(torch, self._weights, settings.assumed, self._unseen)
        self._timed = autotune.Timed()
        self._work_log = WorkLog()
        self._phases = Phases(
            torch,
            self._claims,
            self._modules,
            max_steps=settings.max_steps,
            on_step=self._note_step,
            on_stop=self._note_stop,
            values=self._values,
            unseen=self._unseen,
        )

    def install(self) -> None:
        """Hooks into torch; the allocator's history begins when CUDA is initialised.

        It is needed for the snapshot alone: without one, the program has torch's history to itself.
        """
        if self._settings.has_snapshot:
            self._history.install()
        library.watch_pinned()
        self._phases.on_mark = self._work_log.mark
        self._work_log.begin(is_wanted=self._settings.has_clock)
        self._peaks.install()
        self._phases.install()
        compiled = Compiled(self._torch, self._phases, self._values, self._weights)
        defer_import(self._torch, compiled.install)
        self._weights.install()
        if self._settings.has_dummy_weights:
            self._make_weights_up()
        if not self._values.install(is_following=self._settings.has_values):
            self._warnings.append(
                f"torch {self._torch.__version__} offers no way to follow small values: masks, "
                "counts and flags that kernels make read as zeros"
            )
        self._timed = autotune.install(note := self._values.shapes.note)
        if self._settings.has_values:
            Kernels(self._torch, self._values).install()
        self._groups = lone_rank.install(self._torch, self._settings.job, note)
        os.register_at_fork(after_in_child=self._leave)
        self._torch.cuda._lazy_call(self._unseen.guard(self._begin))

    def _make_weights_up(self) -> None:
        from ullage.record.weights.dummy_vision_weights import MadeUpVision
        from ullage.record.weights.dummy_weights import MadeUpWeights

        directory = self._settings.run_dir / "weights"
        made_up = MadeUpWeights(self._torch, directory, self._warnings.append)
        vision = MadeUpVision(self._torch, directory, self._warnings.append)
        self._weights.is_made_up = made_up.holds
        self._made_up = (made_up, vision)
        for weights in self._made_up:
            weights.install()

    def _note_unused_options(self) -> None:
        """An option that did nothing, as the program does not do what it is about."""
        if self._made_up and not any(weights.num_made for weights in self._made_up):
            self._warnings.append(
                "--dummy-weights made nothing up: it is about missing weights that transformers' "
                "or diffusers' from_pretrained or timm's pretrained=True ask for, and there were "
                "none"
            )

    def _begin(self) -> None:
        if os.getpid() != self._pid:
            return
        self._has_device = True
        self._warnings += torch_internals.list_losses(self._torch)
        if _UNCACHED in os.environ:
            self._warnings.append(
                f"{_UNCACHED} is set: tensors are taken from the driver, so that they have no "
                "owners and are in the line of other libraries"
            )
        if self._is_forked:
            self._values.resume()  # it was let alone until it turned to a device
        self._begin_run()
        with contextlib.suppress(OSError, ValueError):
            self._reserve = mmap.mmap(-1, _RESERVE_BYTES)
        if not self._modules.begin():
            self._warnings.append(
                f"torch {self._torch.__version__} numbers autograd nodes in a way not known here: "
                "what backward allocates has no module"
            )
        backend = self._torch.cuda.get_allocator_backend()
        if backend == "native" and self._settings.has_snapshot:
            try:
                self._history.begin()
                self._has_history = True
                if not self._history.can_have_stacks:
                    self._warnings.append(
                        "the snapshot has no stacks: the locale has no letters for the names of "
                        "files here; set PYTHONUTF8=1, or a locale of UTF-8"
                    )
            except (TypeError, RuntimeError) as error:
                self._warnings.append(
                    f"torch {self._torch.__version__} records memory history in a way not known "
                    f"here ({error}): the snapshot has none"
                )
        observe = torch_internals.find(self._torch, "torch._C._cuda_attach_out_of_memory_observer")
        if backend == "native" and observe is not None:
            observe(self._unseen.guard(self.ooms.note))
        if backend != "native" or _UNCACHED in os.environ:  # torch tells its observers of neither
            library.on_request(self._unseen.guard(self.ooms.note_request))
        library.on_host_read(self._unseen.guard(self._note_read))

    def _note_own_failure(self, name: str, error: Exception) -> None:
        self._values.shapes.note(f"{name} not followed", 0, f"unknown ({type(error).__name__})")

    def _begin_run(self) -> None:
        self._mark = levels.begin(self._settings.run_dir, self._pid)
        wait_for_request(self._settings.run_dir, self._pid, self.note_signal, self.finish)

    def _look_at_failure(self) -> None:
        """Who holds what where memory ran out; stacks tell from then on what is tried again."""
        self._look_at_holders()
        if not self._has_history:
            with contextlib.suppress(TypeError, RuntimeError):
                self._history.begin()
                self._has_history = True

    def _leave(self) -> None:
        """In a forked child: what it does is not this process's. It may turn to a device itself
        where this process has not.
        """
        self._values.pause()
        if self._has_device:
            self._is_written = True
        else:
            self._pid, self._started_s, self._is_forked = os.getpid(), time.time(), True

    def go_on_as(self, settings: Settings) -> None:
        """In a copy of this process that no handler of forks has seen: it is a run of its own from
        here on.
        """
        self._settings, self._pid = settings, os.getpid()
        if self._has_device:
            self._begin_run()
        self._work_log.begin(is_wanted=settings.has_clock)

    def step_aside(self) -> None:
        """What follows is not the program's, and this process leaves no record of it: nothing is
        watched, put off or counted any more.
        """
        self._is_written = True
        self._values.stop()  # a replay's backward would have it go on
        self._weights.is_over = True
        self._phases.stop()

    def _note_read(self, num_bytes: int) -> None:
        warning = self._reads.note(num_bytes, self._values.reads.answer)
        if warning is not None and warning not in self._warnings:
            self._warnings.append(warning)
            print(f"ullage: {warning}", file=sys.stderr)

    def _look_at_holders(self) -> None:
        for look in (self._claims.claim_everything, self._holders.look):
            self._unseen.run(look.__name__, look)

    def _note_step(self, num_steps: int) -> None:
        self._reads.end_step()
        self._values.policy.num_steps = num_steps
        self._work_log.mark("step", num_steps)
        if num_steps in _LOOKED_AT:
            self._holders.look()
        if self._settings.progress is not None:
            allocated = self._peaks.allocated_now() if self._has_device else 0
            # A disk that is full, or no file allowed any more, is not to end the program.
            with contextlib.suppress(OSError), self._settings.progress.open("a") as progress:
                progress.write(f"step {num_steps} allocated {allocated}\n")

    def _note_stop(self, num_steps: int, kind: StepKind) -> None:
        """The program is ended after so many steps."""
        steps: StopFields = {"count": num_steps, "kind": kind.value}
        self.exit = self.exit | {"kind": "steps_reached", "steps": steps}

    def note_exception(self, error: BaseException) -> None:
        """An exception that ends the program."""
        kind = type(error)
        self.exit = {
            "kind": "exception",
            "exception": f"{kind.__module__}.{kind.__qualname__}",
            "message": str(error),
            "where": source_location.of_traceback(error.__traceback__),
            "code": 1,
        }
        if not isinstance(error, self._torch.OutOfMemoryError):
            assumed = self._settings.assumed if self._settings.has_values else None
            self._warnings += suspicions(error, self._reads, self._values.shapes, assumed)
        self.ooms.note_exception(error, self.exit["where"])

    def note_signal(self, number: int) -> None:
        """A signal that ends the program."""
        self.exit = self.exit | {"kind": "signal", "code": 128 + number}

    def note_exit(self, code: int) -> None:
        """A call that ends the program at once."""
        if self.exit["kind"] == "returned":
            self.exit = self.exit | {"kind": "system_exit", "code": code}

    def finish(self) -> None:
        """Writes the record, and the snapshot; once, and only where the device was used. Where that
        fails, the reason is left in its place.
        """
        with self._writing:
            if not self._is_written and self._has_device and os.getpid() == self._pid:
                self._is_written = True
                self._finish()

    def _finish(self) -> None:
        if self._reserve is not None:
            self._reserve.close()
        lift_limits()
        levels.excuse(self._mark, levels.WRITING)
        try:
            with undisturbed():
                self._write()
            levels.excuse(self._mark, "")
        except Exception as error:  # the program may be in any state
            text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            why = f"{type(error).__name__}: {text}" if text else type(error).__name__
            levels.excuse(self._mark, why)

    def show(self, path: Path) -> bool:
        """Writes a snapshot of what is known by now, and goes on; False: no device was used."""
        if self._has_device:
            write_whole(path, self._in_snapshot(self._look()))
            self._values.resume()
        return self._has_device

    def _write(self) -> None:
        self._note_unused_options()
        record, stem = self._look(), self._settings.run_dir / str(self._pid)
        write_whole(stem.with_suffix(".record"), record)
        if self._settings.has_snapshot:
            write_whole(stem.with_suffix(".snapshot.pickle"), self._in_snapshot(record))

    def _look(self) -> RecordFields:
        self._values.pause()
        self._look_at_holders()
        return self._record()

    def _in_snapshot(self, record: RecordFields) -> dict[str, Any]:
        return (self._history.snapshot() if self._has_history else _NO_HISTORY) | {"ullage": record}

    def _record(self) -> RecordFields:
        torch = self._torch
        events = self._events()
        remark = self._phases.steps.remark
        if remark is not None and remark not in self._warnings:
            self._warnings.append(remark)
        answered = requests.answered_by(self._pid, self._settings.run_dir)
        return {
            **program_fields(torch, self._started_s, self.exit),
            "devices": [self._peaks.describe(index) for index in range(torch.cuda.device_count())],
            "first_position": 0,
            "events": events,
            "requests": answered,
            "marks": requests.as_steps(self._phases.whole_marks(), answered),
            "modules": self._modules.names(),
            "claims": [list(claim) for claim in self._claims.rows()],
            "workspaces": library.workspaces(),
            **library.usage(len(events["device"])),
            **self._holders.columns(),
            **self._basis(),
            "ooms": self.ooms.rows,
            "host_needed_bytes": host.needed_bytes(),
            "pinned_peak_bytes": library.pinned_peak_bytes(),
            "pinned_low_peak_bytes": library.pinned_low_peak_bytes(),
            "pinned_asked_peak_bytes": library.pinned_asked_peak_bytes(),
            "warnings": self._warnings,
            "groups": self._groups,
            **self._optional(),
        }

    def _optional(self) -> OptionalFields:
        fields = self._work_log.fields()
        if self.ooms.rows:
            history = self._history.snapshot() if self._has_history else _NO_HISTORY
            fields["attempts"] = self.ooms.attempts(history)
        return fields

    def _events(self) -> EventColumns:
        events = library.events()
        num_lost = library.position() - len(events["device"])
        if num_lost > 0:
            self._warnings.append(
                f"the last {num_lost} allocator events were not kept: owners and steps end before "
                "the program did; use --steps to stop earlier"
            )
        return events

    def _basis(self) -> BasisFields:
        """What was not known, and what was assumed in its place."""
        has_values = self._settings.has_values
        answer = self._values.policy.words if has_values else "answered as zeros"
        return {
            "reads": self._reads.document(answer),
            "shapes": self._values.shapes.document(),
            "assumed": library.assumed(),
            "refused": library.refused(),
            "operands": library.operands(),
            "num_not_yet": library.num_not_yet(),
            "num_timed": self._timed.count,
            "not_initialised": {
                "count": self._weights.held.count,
                "bytes": self._weights.held.bytes,
            },
        }
