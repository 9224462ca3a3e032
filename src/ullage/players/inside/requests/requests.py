"""A file of requests, and what is noted of each while a program answers it.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}
    {"prompt": "Once upon a time", "max_tokens": 16}
    {"audio_s": 30.0}

Each line is a JSON object. What calls the program (calls.py a function, phantom/server.py a server)
notes at which allocator events a request began and ended, in every process of the run; a process
puts its own into its record. So nothing in the program has to know of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ullage.ground.errors import SpecError
from ullage.ground.parsing import parse_json
from ullage.log.assumptions import Assumption, AssumptionKind

if TYPE_CHECKING:
    from ullage.log.record_schema import Rows

_NOTES = "requests"
_EXAMPLE = '{"input_length": 4096, "output_length": 128}'
# Between two parts of a replay all users are waited for. A part has at least as many requests as
# there are users, and where the file is long four times as many, so that most of it runs in full.
_MOST_PER_USER = 4
_PARTS = 4


@dataclass(frozen=True, slots=True)
class Request:
    """One line of the file: its place, such as "requests.jsonl:7", and the object."""

    where: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Noted:
    """A request that was sent.

    Attributes:
        where: its place in the file.
        begin, end: the position in the allocator's events, by process.
        failure: why it was not answered; empty where it was.
        is_out_of_memory: whether the device had no room.
    """

    where: str
    begin: Mapping[int, int]
    end: Mapping[int, int]
    failure: str = ""
    is_out_of_memory: bool = False


def read_requests(path: Path, limit: int | None = None) -> tuple[Request, ...]:
    """The requests of a file, or the first of them.

    Raises:
        SpecError: it cannot be read, a line is not a JSON object, or there is none.
    """
    requests: list[Request] = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if limit is not None and len(requests) == limit:
                    break
                if line.strip():
                    requests.append(_parse(line, f"{path.name}:{number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{str(path)!r} cannot be read: {error}") from None
    if not requests:
        raise SpecError(f"{str(path)!r} has no request; write one on each line, such as {_EXAMPLE}")
    return tuple(requests)


def _parse(line: str, where: str) -> Request:
    try:
        body = parse_json(line)
    except ValueError as error:
        raise SpecError(f"{where}: {error}; expected a JSON object, such as {_EXAMPLE}") from None
    if not isinstance(body, dict):
        raise SpecError(f"{where} is {line.strip()[:40]}; expected an object, such as {_EXAMPLE}")
    return Request(where, body)


def in_parts(requests: Sequence[Request], users: int) -> Iterator[Sequence[Request]]:
    """The requests in parts after each of which all users are waited for: one by one for one user.

    What is held when no request runs is what can be compared.
    """
    most = 1 if users == 1 else _MOST_PER_USER * users
    size = max(users, min(most, len(requests) // _PARTS))
    for first in range(0, len(requests), size):
        yield requests[first : first + size]


def note(run_dir: Path, noted: Noted) -> None:
    """Adds a request to the notes of a run."""
    row = [noted.where, noted.begin, noted.end, noted.failure, noted.is_out_of_memory]
    number = os.open(run_dir / _NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(number, json.dumps(row).encode() + b"\n")
    finally:
        os.close(number)


def read_notes(run_dir: Path) -> list[Noted]:
    """The requests of a run that left notes."""
    try:
        lines = (run_dir / _NOTES).read_bytes().splitlines()
    except OSError:
        return []
    notes = []
    for line in lines:
        where, begin, end, failure, is_out_of_memory = json.loads(line)
        notes.append(Noted(where, _by_pid(begin), _by_pid(end), failure, is_out_of_memory))
    return notes


def _by_pid(positions: Mapping[str, int]) -> dict[int, int]:
    return {int(pid): position for pid, position in positions.items()}


def answered_by(pid: int, run_dir: Path) -> Rows:
    """The rows in a process's record for the requests that it was there for, as they began: [where,
    begin, end, failure, is_out_of_memory].
    """
    rows: Rows = [
        [note.where, note.begin.get(pid, 0), note.end[pid], note.failure, note.is_out_of_memory]
        for note in read_notes(run_dir)
        if pid in note.end
    ]
    return sorted(rows, key=lambda row: row[1])


def assume_order(answered: Sequence[Sequence[Any]]) -> Rows:
    """The assumption where requests run at once: the most that do."""
    changes = sorted(change for row in answered for change in ((row[1], 1), (row[2], -1)))
    at_once = max(accumulate(change for _, change in changes), default=0)
    what = "in which order requests that run at once take memory"
    return [Assumption(AssumptionKind.ORDER, what, count=at_once).row()] if at_once > 1 else []


def as_steps(marks: Sequence[Sequence[Any]], answered: Sequence[Sequence[Any]]) -> Rows:
    """The marks of a process with its steps where no request runs any more; without requests
    unchanged.
    """
    if not answered:
        return [list(mark) for mark in marks]
    begins = sorted(row[1] for row in answered)
    ends = sorted(row[2] for row in answered)
    # After the last of so many ends as many have begun, and the next begins no earlier.
    quiet = [
        end
        for number, end in enumerate(ends, start=1)
        if number == len(ends) or begins[number] >= end
    ]
    steps = [[position, "step", index] for index, position in enumerate(quiet)]
    others = [list(mark) for mark in marks if mark[1] != "step"]
    return sorted([*others, *steps], key=lambda mark: (mark[0], mark[1] == "step"))
