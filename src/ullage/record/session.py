"""One watched process: what is switched on when torch arrives, and the record at its end."""

from __future__ import annotations

import os
import pickle
import platform
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ullage import __version__
from ullage.record import library, place
from ullage.record.compiler import defer_import
from ullage.record.history import History
from ullage.record.ownership import Claims
from ullage.record.peaks import Peaks
from ullage.record.phases import Phases
from ullage.record.values import Values
from ullage.record.weights import SkippedWeights


@dataclass(frozen=True, slots=True)
class Settings:
    """What `ullage run` asks of a watched process; read from the environment."""

    run_dir: Path
    max_steps: int | None
    has_snapshot: bool
    has_real_init: bool
    has_values: bool
    progress: Path | None

    @classmethod
    def from_environment(cls) -> Settings:
        """Settings from the ULLAGE_* variables."""
        steps, progress = os.environ.get("ULLAGE_STEPS"), os.environ.get("ULLAGE_PROGRESS")
        return cls(
            run_dir=Path(os.environ["ULLAGE_RUN_DIR"]),
            max_steps=int(steps) if steps else None,
            has_snapshot=os.environ.get("ULLAGE_SNAPSHOT", "1") == "1",
            has_real_init=os.environ.get("ULLAGE_REAL_INIT") == "1",
            has_values=os.environ.get("ULLAGE_VALUES", "1") == "1",
            progress=Path(progress) if progress else None,
        )


class Session:
    """Lives from torch's import to the end of the process."""

    def __init__(
        self, torch: ModuleType, settings: Settings, changed_variables: Sequence[str] = ()
    ) -> None:
        self.exit: dict[str, Any] = {
            "kind": "returned",
            "exception": None,
            "message": None,
            "where": None,
            "code": 0,
        }
        self._torch = torch
        self._settings = settings
        self._changed_variables = tuple(changed_variables)
        self._pid = os.getpid()
        self._started_s = time.time()
        self._has_device = False
        self._has_history = False
        self._is_written = False
        self._reads: dict[str | None, list[int]] = {}
        self._ooms: list[dict[str, Any]] = []
        self._warnings: list[str] = []
        self._weights = SkippedWeights(torch, is_on=not settings.has_real_init)
        self._history = History(torch)
        self._peaks = Peaks(torch)
        self._claims = Claims(torch)
        self._values = Values(torch, self._weights)
        self._phases = Phases(
            torch,
            self._claims,
            max_steps=settings.max_steps,
            on_step=self._note_step,
            values=self._values,
        )

    def install(self) -> None:
        """Hooks into torch; the allocator's history begins when CUDA is initialised."""
        self._history.install()
        self._peaks.install()
        self._phases.install()
        defer_import(self._torch)
        if self._settings.has_values and not self._values.install():
            self._warnings.append(
                f"torch {self._torch.__version__} offers no way to follow small values: masks, "
                "counts and flags that kernels make read as zeros"
            )
        os.register_at_fork(after_in_child=self._leave)
        self._torch.cuda._lazy_call(self._begin)

    def _begin(self) -> None:
        if os.getpid() != self._pid:
            return
        self._has_device = True
        backend = self._torch.cuda.get_allocator_backend()
        if backend == "native":
            try:
                self._history.begin()
                self._has_history = True
            except (TypeError, RuntimeError) as error:
                self._warnings.append(
                    f"torch {self._torch.__version__} records memory history in a way not known "
                    f"here ({error}): the snapshot has none"
                )
            observe = getattr(self._torch._C, "_cuda_attach_out_of_memory_observer", None)
            if observe is not None:
                observe(self._note_oom)
        library.on_host_read(self._note_read)

    def _leave(self) -> None:
        """In a forked child: it does its own work, and what it does is not this process's."""
        self._values.pause()
        self._is_written = True

    def _note_read(self, num_bytes: int) -> None:
        row = self._reads.setdefault(place.here(), [0, 0])
        row[0] += 1
        row[1] += num_bytes

    def _note_oom(self, device: int, requested: int, _device_total: int, _device_free: int) -> None:
        self._claims.claim_everything()
        self._ooms.append(
            {
                "position": library.position(),
                "device": device,
                "requested_bytes": requested,
                "message": None,
                "where": place.here(),
            }
        )

    def _note_step(self, num_steps: int) -> None:
        if self._settings.max_steps is not None and num_steps >= self._settings.max_steps:
            self.exit["kind"] = "steps_reached"
        if self._settings.progress is not None:
            allocated = self._torch.cuda.memory_allocated() if self._has_device else 0
            with self._settings.progress.open("a") as progress:
                progress.write(f"step {num_steps} allocated {allocated}\n")

    def note_exception(self, error: BaseException) -> None:
        """An exception that ends the program."""
        kind = type(error)
        self.exit = {
            "kind": "exception",
            "exception": f"{kind.__module__}.{kind.__qualname__}",
            "message": str(error),
            "where": place.of_traceback(error.__traceback__),
            "code": 1,
        }
        if self._ooms and isinstance(error, self._torch.OutOfMemoryError):
            self._ooms[-1]["message"] = str(error)
            self._ooms[-1]["where"] = self.exit["where"] or self._ooms[-1]["where"]

    def note_signal(self, number: int) -> None:
        """A signal that ends the program."""
        self.exit = self.exit | {"kind": "signal", "code": 128 + number}

    def finish(self) -> None:
        """Writes the record, and the snapshot; once, and only where the device was used."""
        if self._is_written or not self._has_device or os.getpid() != self._pid:
            return
        self._is_written = True
        self._values.pause()
        self._claims.claim_everything()
        record = self._record()
        _write(self._settings.run_dir / f"{self._pid}.record", record)
        if self._settings.has_snapshot:
            # An allocator other than torch's own has no history.
            empty: dict[str, Any] = {"segments": [], "device_traces": []}
            snapshot = self._history.snapshot() if self._has_history else empty
            snapshot["ullage"] = record
            _write(self._settings.run_dir / f"{self._pid}.snapshot.pickle", snapshot)

    def _record(self) -> dict[str, Any]:
        torch = self._torch
        rank = os.environ.get("RANK")
        return {
            "schema": "ullage.record/1",
            "ullage": __version__,
            "torch": str(torch.__version__),
            "cuda": torch.version.cuda,
            "python": platform.python_version(),
            "argv": list(sys.argv),
            "pid": self._pid,
            "rank": int(rank) if rank and rank.isdigit() else None,
            "started_s": self._started_s,
            "ended_s": time.time(),
            "exit": self.exit,
            "devices": [self._device(index) for index in range(torch.cuda.device_count())],
            "first_position": 0,
            "events": self._events(),
            "marks": [list(mark) for mark in self._phases.whole_marks()],
            "claims": [list(claim) for claim in self._claims.rows],
            "workspaces": library.workspaces(),
            **self._basis(),
            "ooms": self._ooms,
            "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "pinned_peak_bytes": library.pinned_peak_bytes(),
            "warnings": self._warnings,
            "changed_variables": list(self._changed_variables),
        }

    def _events(self) -> dict[str, bytes]:
        events = library.events()
        num_lost = library.position() - len(events["device"])
        if num_lost > 0:
            self._warnings.append(
                f"the last {num_lost} allocator events were not kept: owners and steps end before "
                "the program did; use --steps to stop earlier"
            )
        return events

    def _basis(self) -> dict[str, Any]:
        """What was not known, and what was assumed in its stead."""
        return {
            "reads": [
                {"what": "host read", "where": where, "count": count, "bytes": num_bytes}
                for where, (count, num_bytes) in self._reads.items()
            ],
            "shapes": [
                {
                    "what": what,
                    "where": where,
                    "count": count,
                    "bytes": num_bytes,
                    "assumption": assumption,
                }
                for (what, where, assumption), (
                    count,
                    num_bytes,
                ) in self._values.shapes.rows.items()
            ],
            "assumed": library.assumed(),
            "refused": library.refused(),
            "not_initialised": {"count": self._weights.count, "bytes": self._weights.bytes},
        }

    def _device(self, index: int) -> dict[str, Any]:
        properties = self._torch.cuda.get_device_properties(index)
        context = [
            field
            for field in os.environ.get("ULLAGE_DEVICE", "").split(";")
            if field.startswith("context_bytes=")
        ]
        return {
            "index": index,
            "name": properties.name,
            "total_bytes": properties.total_memory,
            "context_bytes": int(context[0].partition("=")[2]) if context else 0,
            "non_torch_bytes": library.non_torch_peak_bytes(index),
            **self._peaks.of_device(index),
        }


def _write(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    aside = path.with_suffix(path.suffix + ".part")
    with aside.open("wb") as file:
        pickle.dump(content, file, protocol=pickle.HIGHEST_PROTOCOL)
    aside.replace(path)
