"""Reads traffic from files: the formats of public traces, recognised by their first line.

    Azure LLM 2023, 2024   CSV: TIMESTAMP,ContextTokens,GeneratedTokens
    BurstGPT               CSV: Timestamp,Model,Request tokens,Response tokens,...,Log Type
    Mooncake               JSONL: timestamp (ms), input_length, output_length, hash_ids; guidellm,
                           aiperf and AIPerf's Bailian traces have the same fields
    vllm bench serve       JSON of --save-result --save-detailed: input_lens, output_lens,
                           start_times

A malformed row is an error that names its line. Rows with an empty answer, which are failures in
BurstGPT, are left out and counted.
Source: Azure/AzurePublicDataset; HPMLL/BurstGPT; kvcache-ai/Mooncake, FAST25-release.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ullage.ground.errors import SpecError
from ullage.ground.parsing import MAX_NUMBER, parse_json, show_value
from ullage.operate.serve.traffic.traffic import Traffic

_AZURE: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURST: Final = ("Timestamp", "Request tokens", "Response tokens")
_MOONCAKE: Final = ("timestamp", "input_length", "output_length")
_DETAILED: Final = ("input_lens", "output_lens", "start_times")
_MICROSECONDS: Final = 6
# No context of a model is longer; a larger number is a column of something else.
_MAX_TOKENS: Final = 100_000_000
FORMATS: Final = (
    "expected Azure's CSV (TIMESTAMP,ContextTokens,GeneratedTokens), BurstGPT's (Timestamp,Model,"
    "Request tokens,Response tokens,...), Mooncake's JSONL (timestamp, input_length, "
    "output_length, hash_ids) or the detailed result of `vllm bench serve`"
)


class _Rows:
    """The requests as they are read."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.prompts: list[int] = []
        self.outputs: list[int] = []
        self.names: list[str] = []
        self.blocks: list[Sequence[int]] = []
        self.num_left_out = 0

    def add(
        self, time_s: float, prompt: int, output: int, name: str, blocks: Sequence[int] = ()
    ) -> None:
        """A request; one with an empty prompt or answer is left out."""
        if prompt < 1 or output < 1:
            self.num_left_out += 1
            return
        self.times_s.append(time_s)
        self.prompts.append(prompt)
        self.outputs.append(output)
        self.names.append(name)
        self.blocks.append(blocks)


def read_traffic(path: Path) -> Traffic:
    """Reads a trace; its first request arrives at 0.

    Raises:
        SpecError: it cannot be read, is of no known format, has a malformed row or no requests.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            first = lines.readline()
            lines.seek(0)
            rows = _reader_of(path, first)(path, lines)
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read as text: {error}") from None
    if not rows.times_s:
        raise SpecError(f"{path}: no request with a prompt and an answer; {FORMATS}")
    begin_s = min(rows.times_s)
    return Traffic.of(
        str(path),
        [time_s - begin_s for time_s in rows.times_s],
        rows.prompts,
        rows.outputs,
        class_names=rows.names,
        blocks=rows.blocks,
        num_left_out=rows.num_left_out,
    )


def _reader_of(path: Path, first: str) -> Callable[[Path, Iterable[str]], _Rows]:
    names = [name.strip() for name in first.strip().split(",")]
    if set(_AZURE) <= set(names):
        return _read_azure
    if set(_BURST) <= set(names):
        return _read_burst
    if first.lstrip().startswith("{"):
        try:
            is_line = isinstance(json.loads(first), dict)
        except ValueError:
            is_line = False
        return _read_mooncake if is_line and "input_length" in first else _read_detailed
    raise SpecError(f"{path}, line 1: found {show_value(first.strip())}; {FORMATS}")


def _records(path: Path, lines: Iterable[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The rows of a CSV by the names of its columns, and where each is."""
    table = csv.DictReader(lines, skipinitialspace=True)
    try:
        for row in table:
            place = f"{path}, line {table.line_num}"
            if None in row or any(value is None for value in row.values()):
                raise SpecError(f"{place}: not as many values as the first line has names")
            yield place, row
    except csv.Error as error:
        raise SpecError(f"{path}, line {table.line_num}: {error}") from None


def _read_azure(path: Path, lines: Iterable[str]) -> _Rows:
    rows = _Rows()
    for place, row in _records(path, lines):
        prompt, output = (_whole(place, name, row[name]) for name in _AZURE[1:])
        rows.add(_moment_s(place, row["TIMESTAMP"]), prompt, output, "requests")
    return rows


def _read_burst(path: Path, lines: Iterable[str]) -> _Rows:
    rows = _Rows()
    for place, row in _records(path, lines):
        prompt, output = (_whole(place, name, row[name]) for name in _BURST[1:])
        name = row.get("Log Type") or row.get("Model") or "requests"
        rows.add(_seconds(place, "Timestamp", row["Timestamp"]), prompt, output, name)
    return rows


def _read_mooncake(path: Path, lines: Iterable[str]) -> _Rows:
    rows = _Rows()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        row = _object(place, line)
        missing = [name for name in _MOONCAKE if name not in row]
        if missing:
            raise SpecError(f"{place}: no {missing[0]!r}; expected {', '.join(_MOONCAKE)}")
        time_s = _seconds(place, "timestamp", row["timestamp"]) / 1e3
        prompt, output = (_whole(place, name, row[name]) for name in _MOONCAKE[1:])
        blocks = row.get("hash_ids") or ()
        if not isinstance(blocks, Sequence) or isinstance(blocks, str):
            raise SpecError(f"{place}: hash_ids is {show_value(blocks)}; expected a list")
        hashes = [_block(place, block) for block in blocks]
        rows.add(time_s, prompt, output, str(row.get("type", "requests")), hashes)
    return rows


def _read_detailed(path: Path, lines: Iterable[str]) -> _Rows:
    """Reads a result of `vllm bench serve`: what was sent when, whatever its latencies were."""
    document = _object(str(path), "".join(lines))
    missing = [name for name in _DETAILED if not isinstance(document.get(name), list)]
    if missing:
        raise SpecError(
            f"{path}: no list {missing[0]!r}; write it with --save-result --save-detailed, or "
            f"use another format: {FORMATS}"
        )
    columns = [document[name] for name in _DETAILED]
    if len({len(column) for column in columns}) != 1:
        raise SpecError(f"{path}: {', '.join(_DETAILED)} have different lengths")
    rows = _Rows()
    for number, (prompt, output, start) in enumerate(zip(*columns, strict=True), 1):
        place = f"{path}, request {number}"
        prompt, output = _whole(place, "input_lens", prompt), _whole(place, "output_lens", output)
        rows.add(_seconds(place, "start_times", start), prompt, output, "requests")
    return rows


def _object(place: str, text: str) -> dict[str, Any]:
    try:
        row = parse_json(text)
    except ValueError as error:
        raise SpecError(f"{place}: {error}") from None
    if not isinstance(row, dict):
        raise SpecError(f"{place}: found {show_value(row)}; expected an object")
    return row


def _whole(place: str, name: str, value: object) -> int:
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not 0 <= number <= _MAX_TOKENS or number != int(number):
        raise SpecError(
            f"{place}: {name} is {show_value(value)}; expected a whole number of 0 to "
            f"{_MAX_TOKENS:,}"
        )
    return int(number)


def _block(place: str, value: object) -> int:
    """A hash of any 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_NUMBER:
        raise SpecError(f"{place}: hash_ids has {show_value(value)}; expected whole numbers")
    return value


def _seconds(place: str, name: str, value: object) -> float:
    try:
        seconds = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        seconds = math.nan
    if isinstance(value, bool) or not math.isfinite(seconds):
        raise SpecError(f"{place}: {name} is {show_value(value)}; expected a number")
    return seconds


def _moment_s(place: str, text: str) -> float:
    """Seconds of "2023-11-16 18:17:03.9799600", in UTC where it names no zone."""
    whole, dot, rest = text.strip().partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    fraction = rest[:digits][:_MICROSECONDS].ljust(_MICROSECONDS, "0") if dot else ""
    try:
        moment = datetime.fromisoformat(f"{whole}{dot}{fraction}{rest[digits:]}")
    except ValueError:
        raise SpecError(
            f"{place}: TIMESTAMP is {show_value(text)}; expected such as 2023-11-16 18:17:03.97996"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
