"""Keeps samples in a file, one line each, and plays them again.

    with Recording(Path("watch.jsonl"), force=False) as recording:
        for sample in samples(source, 1.0):
            recording.add(sample)
    for sample in replay(Path("watch.jsonl")):
        print(sample.time_s)

A line is complete once it is written: a recording that was cut off, as by a full disk or kill -9,
is read up to its last complete line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from ullage.ground.errors import SpecError
from ullage.ground.files import NotWrittenError, check_writable, file_mode, is_stream
from ullage.operate.watch.sample import Sample
from ullage.operate.watch.sample_json import sample_from_line, sample_to_line

# A sample of 64 GPUs with a thousand processes has 0.3 MB; beyond this it is no recording.
_MAX_LINE: Final = 64 * 2**20


class Recording:
    """A file that samples are added to."""

    def __init__(self, path: Path, *, force: bool) -> None:
        """Opens the file.

        Raises:
            SpecError: it exists and `force` is not given, or it cannot be written.
            NotWrittenError: the system refuses.
        """
        check_writable(path, force=force)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        if not is_stream(path):
            flags |= os.O_TRUNC if force else os.O_EXCL
        self.path = path
        try:
            self._number = os.open(path, flags, file_mode(path.parent))
        except OSError as error:
            raise self._not_written(error) from None

    def add(self, sample: Sample) -> None:
        """Adds a line.

        Raises:
            NotWrittenError: it cannot be written, as on a full disk.
        """
        rest = f"{sample_to_line(sample)}\n".encode()
        try:
            while rest:
                rest = rest[os.write(self._number, rest) :]
        except OSError as error:
            raise self._not_written(error) from None

    def _not_written(self, error: OSError) -> NotWrittenError:
        return NotWrittenError(error.errno, error.strerror or str(error), str(self.path))

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._number)


def replay(path: Path, *, on_warning: Callable[[str], None] | None = None) -> Iterator[Sample]:
    """The samples of a recording in order, as fast as they are asked for.

    Args:
        path: the file.
        on_warning: is told if the last line is incomplete, and left out.

    Raises:
        SpecError: the file cannot be read, has no sample, or a line is not one; the message names
            the line.
    """
    number = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(_MAX_LINE):
                number += 1
                if not line.strip():
                    continue
                try:
                    sample = sample_from_line(line)
                except ValueError as error:
                    if line.endswith(b"\n") or number == 1:
                        raise SpecError(_no_sample(path, number, error)) from None
                    if on_warning is not None:
                        on_warning(f"line {number} of {str(path)!r} is cut off, and is left out")
                    return
                yield sample
    except OSError as error:
        raise SpecError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    if number == 0:
        raise SpecError(f"{str(path)!r} is empty; give a file that `ullage watch --record` wrote")


def _no_sample(path: Path, number: int, error: ValueError) -> str:
    return (
        f"line {number} of {str(path)!r} is not a sample of `ullage watch --record`: {error}; "
        "give a file that it wrote"
    )
