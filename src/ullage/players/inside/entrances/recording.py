"""Recording from within a program: `with ullage.record("run.pickle"):`, a decorator, `attach()`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ullage.ground.protocol.run import launcher_rank
from ullage.ground.protocol.variables import RUN_DIR
from ullage.players.inside.entrances.settings import Mode, RecordingSettings, parse_ring
from ullage.players.inside.owners import notebook
from ullage.players.inside.pressure.request_log import Request

if TYPE_CHECKING:
    from ullage.players.inside.owners.held_memory import HeldMemory
    from ullage.players.inside.recorder import Recorder
    from ullage.players.inside.steps.step_log import Log

_COMPACT = ".ullage"
_CHOICES = ", ".join(repr(mode.value) for mode in Mode)
_of_attach: list[Recording] = []  # what `attach()` has begun and nothing has ended: at most one


class Recording(ContextDecorator):
    """Records what this process does with GPU memory while it is open; as a decorator, each call of
    a function.

    A process that is recorded already, by `ullage run` or `ullage record`, is left to that: then
    this does nothing. What is recorded never changes: exceptions pass through.

    Args:
        path: the file; under a launcher of several ranks the rank is added ("run-rank1.pickle"),
            and a number where one of that name is there; folders that are missing are made.
            ".ullage" is the compact format, any other name gets PyTorch's pickle.
            None: nothing is written.
        mode: "full", "events" (no stacks) or "counters" (the peaks of steps alone).
        ring: the host memory for events and stacks, about, such as "64MiB"; the oldest are lost.
        every: the file is written anew after a step when this many seconds have passed; None: at
            the end and when memory runs out only.
        publish: whether the process publishes its state for `ullage watch`.
        log: is called at most once a second, after a step, with the figures of the steps since
            ({"ullage/allocated_peak_bytes": 2.1e9, ...}) and the number of the last.

    Raises:
        SpecError: there is no such mode, or the ring is none.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        mode: str = "full",
        ring: str | int = "64MiB",
        every: float | None = 60.0,
        publish: bool = True,
        log: Log | None = None,
    ) -> None:
        if mode not in {each.value for each in Mode}:
            from ullage.ground.errors import SpecError

            raise SpecError(f"there is no mode {mode!r}; expected one of {_CHOICES}")
        self._target = None if path is None else Path(path)
        self._settings = RecordingSettings(None, Mode(mode), parse_ring(ring), every, publish)
        self._log = log
        self._recorder: Recorder | None = None
        self._num_entered = 0
        self._cells = notebook.CellHook(self._end_cell)
        self.path: Path | None = None
        """The file that was written last; None: none was."""

    def __enter__(self) -> Recording:
        if not self._num_entered:  # a decorated function may call itself
            self.attach()
        self._num_entered += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and self._recorder is not None:
            self._recorder.note_exception(error)
        self._num_entered -= 1
        if not self._num_entered:
            self.detach()

    @property
    def is_attached(self) -> bool:
        """True if it records now."""
        return self._recorder is not None and self._recorder.is_on

    def attach(self) -> None:
        """Begins to record."""
        import torch

        from ullage.players.inside.attached import current
        from ullage.players.inside.entrances.real_gpu import record_gpu
        from ullage.players.inside.steps.step_log import StepLog

        if RUN_DIR in os.environ or current() is not None:
            print("ullage: this process is recorded already", file=sys.stderr)
            return
        settings = replace(self._settings, path=_free_name(_with_rank(self._target)))
        step_log = None if self._log is None else StepLog(torch, self._log)
        self._recorder = record_gpu(torch, settings, step_log)
        self._recorder.attach()
        self._cells.install()

    def detach(self) -> Path | None:
        """Writes the file and takes every hook out; returns the file, None: none was written."""
        self._cells.remove()
        if self in _of_attach:
            _of_attach.remove(self)
        if self._recorder is None:
            return None
        recorder, self._recorder = self._recorder, None
        self.path = recorder.detach()
        if recorder.left:
            names = ", ".join(recorder.left)
            print(f"ullage: others have replaced {names} since: that stays", file=sys.stderr)
        if self.path is not None and self.path.suffix == _COMPACT:
            _make_compact(self.path)
        return self.path

    def step(self) -> None:
        """Says that a step has ended, in a program without an optimizer, such as a server."""
        if self._recorder is not None:
            self._recorder.step()

    def request(
        self, name: str = "request", num_tokens: int | None = None
    ) -> AbstractContextManager[Request]:
        """While it is open, a request is answered; see `request`."""
        return request(name, num_tokens)

    def holders(self, limit: int = 20) -> HeldMemory:
        """The tensors that have a name on the GPU now, by which names, and how to let each go: a
        table of tensors. It needs no recording: `ullage.record.holders()` is the same.
        """
        return holders(limit)

    def is_same(self, other: Recording) -> bool:
        """True if another was asked for the same."""
        ours, others = (
            (each._target, each._settings, getattr(each._log, "__code__", each._log))
            for each in (self, other)
        )
        return ours == others

    def _end_cell(self) -> None:
        """A cell has ended: what it leaves is noted, so that a later peak can be told from it."""
        recorder = self._recorder
        if recorder is not None and recorder.is_on:
            recorder.look()


def holders(limit: int = 20) -> HeldMemory:
    """The tensors that have a name on the GPU now; see `Recording.holders`."""
    import torch

    from ullage.players.inside.owners.held_memory import find_held_memory

    return find_held_memory(torch, limit)


def attach(path: str | os.PathLike[str] | None = None, **options: Any) -> Recording:
    """Begins to record, such as in a notebook; `detach()` of what it returns ends it.

    A cell may run again: where an earlier `attach()` still records, the same arguments get the same
    recording, which goes on; others end the earlier one, which writes its file, and begin anew.

    The arguments and errors are those of `Recording`.
    """
    recording = Recording(path, **options)
    for earlier in [each for each in _of_attach if each.is_attached]:
        if earlier.is_same(recording):
            print("ullage: this process is recorded already: that goes on", file=sys.stderr)
            return earlier
        file = earlier.detach()
        wrote = "without a file" if file is None else f"in {str(file)!r}"
        print(f"ullage: the earlier recording has ended, {wrote}", file=sys.stderr)
    recording.attach()
    if recording.is_attached:
        _of_attach[:] = [recording]
    return recording


@contextmanager
def request(name: str = "request", num_tokens: int | None = None) -> Iterator[Request]:
    """While this lasts, the program answers a request: whatever records this process counts its
    time, and its memory while it was open. Where nothing does, this does nothing.

        with ullage.record.request("chat") as request:
            request.num_tokens = answer()

    Args:
        name: of its kind; requests of a name are counted together.
        num_tokens: how many tokens it makes, which can be set later; None: not known.

    Raises:
        SpecError: the name is not a text, or the tokens are not a number.
    """
    from ullage.players.inside.attached import current
    from ullage.players.inside.pressure.gauge import PressureGauge

    recorder = current()
    gauge = None if recorder is None else recorder.find(PressureGauge)
    if gauge is None:
        yield Request(name, num_tokens)
    else:
        with gauge.request(name, num_tokens) as opened:
            yield opened


record: Callable[..., Recording] = Recording


def _with_rank(path: Path | None) -> Path | None:
    """The path with the number of this rank, where a launcher started several."""
    size, rank = os.environ.get("WORLD_SIZE", ""), launcher_rank()
    if path is None or rank is None or not size.isdigit() or int(size) < 2:
        return path
    return path_of_rank(path, rank)


def path_of_rank(path: Path, rank: int) -> Path:
    """The path with the number of a rank, once: "run-rank1.pickle"."""
    ending = f"-rank{rank}"
    return (
        path if path.stem.endswith(ending) else path.with_name(f"{path.stem}{ending}{path.suffix}")
    )


def _free_name(path: Path | None) -> Path | None:
    """The path, or that with the next number that no file has."""
    if path is None:
        return None
    free, number = path, 2
    while os.path.lexists(free):
        free, number = path.with_name(f"{path.stem}-{number}{path.suffix}"), number + 1
    return free


def _make_compact(path: Path) -> None:
    """Turns a pickle into our compact file, where numpy is at hand; else it stays a pickle, which
    is read under any name.
    """
    try:
        from ullage.log.compact_format.compact import write_compact
        from ullage.log.snapshot_reader import read_snapshot

        aside = path.with_name(path.name + ".part")
        write_compact(read_snapshot(path), aside)
        aside.replace(path)
    except Exception as error:  # the recording itself is there, and the program goes on
        print(f"ullage: {str(path)!r} stays a pickle: {error}", file=sys.stderr)
