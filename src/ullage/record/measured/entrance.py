"""Recording from within a program: `with ullage.record("run.pickle"):`, a decorator, `attach()`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ullage.protocol.variables import RUN_DIR
from ullage.record.measured.pressure.request_log import Request
from ullage.record.measured.recording_settings import Mode, RecordingSettings, parse_ring

if TYPE_CHECKING:
    from ullage.record.measured.recorder import Recorder

_COMPACT = ".ullage"
_RECORDER = "ullage.record.measured.recorder"
_CHOICES = ", ".join(repr(mode.value) for mode in Mode)


class Recording(ContextDecorator):
    """Records what this process does with GPU memory while it is open; as a decorator, each call of
    a function.

    A process that is recorded already, by `ullage run` or `ullage record`, is left to that: then
    this does nothing. What is recorded never changes: exceptions pass through.

    Args:
        path: the file; a number is added where one of that name is there, and folders that are
            missing are made. ".ullage" is the compact format, any other name gets PyTorch's pickle.
            None: nothing is written.
        mode: "full", "events" (no stacks) or "counters" (the peaks of steps alone).
        ring: the host memory for events and stacks, about, such as "64MiB"; the oldest are lost.
        every: the file is written anew after a step when so many seconds have passed; None: at the
            end and when memory runs out only.
        publish: whether the process publishes its state for `ullage watch`.

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
    ) -> None:
        if mode not in {each.value for each in Mode}:
            from ullage.errors import SpecError

            raise SpecError(f"there is no mode {mode!r}; expected one of {_CHOICES}")
        self._target = None if path is None else Path(path)
        self._settings = RecordingSettings(None, Mode(mode), parse_ring(ring), every, publish)
        self._recorder: Recorder | None = None
        self.path: Path | None = None
        """The file that was written last; None: none was."""

    def __enter__(self) -> Recording:
        self.attach()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and self._recorder is not None:
            self._recorder.note_exception(error)
        self.detach()

    @property
    def is_attached(self) -> bool:
        """Whether it records now."""
        return self._recorder is not None

    def attach(self) -> None:
        """Begins to record."""
        import torch

        from ullage.record.measured.recorder import Recorder, current

        if RUN_DIR in os.environ or current() is not None:
            print("ullage: this process is recorded already", file=sys.stderr)
            return
        settings = self._settings
        recorder = Recorder(torch, RecordingSettings(
            _free_name(self._target), settings.mode, settings.ring_bytes, settings.flush_s,
            settings.is_published,
        ))  # fmt: skip
        recorder.attach()
        self._recorder = recorder

    def detach(self) -> Path | None:
        """Writes the file and takes every hook out; returns the file, None: none was written."""
        if self._recorder is None:
            return None
        recorder, self._recorder = self._recorder, None
        self.path = recorder.detach()
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


def attach(
    path: str | os.PathLike[str] | None = None,
    *,
    mode: str = "full",
    ring: str | int = "64MiB",
    every: float | None = 60.0,
    publish: bool = True,
) -> Recording:
    """Begins to record, such as in a notebook; `detach()` of what it returns ends it.

    The arguments and errors are those of `Recording`.
    """
    recording = Recording(path, mode=mode, ring=ring, every=every, publish=publish)
    recording.attach()
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
        SpecError: the name is no text, or the tokens are no number.
    """
    recorder = None
    if _RECORDER in sys.modules:
        recorder = sys.modules[_RECORDER].current()
    if recorder is None:
        yield Request(name, num_tokens)
    else:
        with recorder.pressure.request(name, num_tokens) as opened:
            yield opened


record: Callable[..., Recording] = Recording


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
        from ullage.trace.compact_format.compact import write_compact
        from ullage.trace.snapshot_reader import read_snapshot

        aside = path.with_name(path.name + ".part")
        write_compact(read_snapshot(path), aside)
        aside.replace(path)
    except Exception as error:  # the recording itself is there, and the program goes on
        print(f"ullage: {str(path)!r} stays a pickle: {error}", file=sys.stderr)
