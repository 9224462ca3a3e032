"""The lock file: the memory of each scenario, and of each marked test, when it was locked.

    lock = read_lock(Path("ullage.lock"))
    lock.scenarios["train"].peaks.allocated_bytes
    change_lock(Path("ullage.lock"), lambda lock: lock.with_scenarios({"train": entry}))

It is kept in git beside the program. So it is TOML that people can read, one line a figure, always
in the same order, with nothing of the machine or the hour in it: what did not change leaves no
difference. It is written here, since a comment beside each figure says it in words, which is
why no library writes it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

from ullage.explain.basis import BasisKind
from ullage.ground.config.tables import WRITTEN, Source, Whole
from ullage.ground.errors import SpecError
from ullage.ground.files import write_text
from ullage.ground.parsing import read_bounded, show_value
from ullage.ground.protocol.plain import As, Mark, plain
from ullage.ground.units import KIB, format_bytes

LOCK_NAME = "ullage.lock"
LOCK_VERSION = 1
_HEADER = (
    "Peaks of GPU memory, as `ullage check --write` found them. `ullage check` compares with them.",
    "Keep this file in git. `ullage check --write NAME` writes an entry anew.",
)
_DIGITS = 12
_SCENARIO, _TEST = "scenario", "test"


class Peaks(NamedTuple):
    """The peaks of four levels on one device, in bytes; each includes the one before."""

    requested_bytes: Annotated[Whole, As("peak_requested_bytes")]
    allocated_bytes: Annotated[Whole, As("peak_allocated_bytes")]
    reserved_bytes: Annotated[Whole, As("peak_reserved_bytes")]
    used_bytes: Annotated[Whole, As("peak_used_bytes")]


class ServedFigures(NamedTuple):
    """The figures of a server: tokens of its cache, and requests within the objective, of all."""

    cache_tokens: Whole
    good_requests: Whole
    requests: Whole


@dataclass(frozen=True, slots=True)
class Key:
    """The conditions under which an entry was measured; a text that does not apply is empty.

    Attributes:
        command: as it is written in the configuration, variables filled in.
        gpu: a slug of the catalogue.
        torch, cuda, ullage: versions.
        allocator: its settings, such as "expandable_segments:True".
        ranks: of a job of several, such as "rank 3 of 64".
        engine: of a server, such as "vllm 0.32.0".
    """

    torch: str = ""
    cuda: str = ""
    gpu: str = ""
    ullage: str = ""
    allocator: str = ""
    command: str = ""
    ranks: str = ""
    engine: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """The figures of one device.

    Attributes:
        key: what that holds for.
        peaks: the highest levels.
        basis: what the allocator's bytes rest on.
        assumed: and what was assumed for them.
        moment: when the most was allocated, such as "step 1, backward"; empty if not known.
        growth_bytes: by how much more is held after each step; None where there are too few.
        categories: what each owner held when the most was allocated; their sum is that peak.
        modules: likewise, those of some size.
        places: likewise, by file and function.
        served: of a server, what it held.
        findings: the codes of what `ullage explain` finds, such as UL121.
    """

    key: Annotated[Key, Mark.FLAT]
    peaks: Annotated[Peaks, Mark.FLAT]
    basis: BasisKind
    assumed: tuple[str, ...] = ()
    moment: Annotated[str, As("peak_at")] = ""
    growth_bytes: Annotated[int | None, As("growth_bytes_per_step")] = None
    categories: Mapping[str, Whole] = field(default_factory=dict)
    modules: Mapping[str, Whole] = field(default_factory=dict)
    places: Mapping[str, Whole] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    served: Annotated[ServedFigures | None, Mark.FLAT] = None


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file: an entry for each device of each scenario, and for each marked test."""

    scenarios: Annotated[Mapping[str, Entry], As(_SCENARIO)] = field(default_factory=dict)
    tests: Annotated[Mapping[str, Entry], As(_TEST)] = field(default_factory=dict)

    def with_scenarios(self, entries: Mapping[str, Entry | None]) -> Lock:
        """The lock with these entries of scenarios changed; None removes one."""
        return replace(self, scenarios=_changed(self.scenarios, entries))

    def with_tests(self, entries: Mapping[str, Entry | None]) -> Lock:
        """The lock with these entries of tests changed; None removes one."""
        return replace(self, tests=_changed(self.tests, entries))


def _changed(
    before: Mapping[str, Entry], entries: Mapping[str, Entry | None]
) -> Mapping[str, Entry]:
    return {name: entry for name, entry in (before | entries).items() if entry is not None}  # type: ignore[operator]


def read_lock(path: Path) -> Lock:
    """The lock in a file; an empty one where there is no such file.

    Raises:
        SpecError: it cannot be read, is damaged, or a newer ullage wrote it.
    """
    try:
        text = read_bounded(path)
    except FileNotFoundError:
        return Lock()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{str(path)!r} cannot be read: {error}; {_REMEDY}") from None
    return parse_lock(text, str(path))


def parse_lock(text: str, name: str = LOCK_NAME) -> Lock:
    """The lock in a text; `name` is what errors call it, which are those of `read_lock`."""
    source = Source(Path(name), text, name=name)
    try:
        document = source.parse()
    except SpecError as error:
        raise SpecError(f"{error}; {_REMEDY}") from None
    except ValueError as error:
        conflict = " (it holds the marks of a merge conflict)" if "\n<<<<<<< " in text else ""
        raise SpecError(f"{name}: {error}{conflict}; {_REMEDY}") from None
    version = document.pop("version", None)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise SpecError(
            f"{name}: version={show_value(version)}, expected {LOCK_VERSION}; {_REMEDY}"
        )
    if version > LOCK_VERSION:
        raise SpecError(
            f"{name} is of version {version}, and this ullage knows versions up to "
            f"{LOCK_VERSION}: a newer ullage wrote it; update ullage"
        )
    try:
        with source.at():
            return WRITTEN.read(Lock, document)
    except SpecError as error:
        raise SpecError(f"{error}; {_REMEDY}") from None


def render_lock(lock: Lock) -> str:
    """The text of a lock file."""
    tables: dict[str, Plain | Table] = {
        kind: {name: _entry_table(entries[name]) for name in sorted(entries, key=_order)}
        for kind, entries in ((_SCENARIO, lock.scenarios), (_TEST, lock.tests))
        if entries
    }
    return render_toml({"version": LOCK_VERSION, **tables}, _HEADER)


def _order(name: str) -> list[str]:
    """The sort key of a name: batch=8 before batch=16."""
    parts = re.split(r"([0-9]+)", name)
    return [part.zfill(_DIGITS) if part.isdecimal() else part for part in parts]


def change_lock(path: Path, change: Callable[[Lock], Lock]) -> Lock:
    """Reads a lock file, changes it and writes it, under a file lock; returns the new lock.

    The file appears whole or stays what it was; a change that changes nothing leaves it alone.

    Raises:
        SpecError: as for `read_lock`, or it cannot be written.
    """
    try:
        with _held(path.parent):
            after = change(read_lock(path))
            text = render_lock(after)
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                write_text(text, path, force=True)
            return after
    except OSError as error:
        raise SpecError(
            f"{str(path)!r} cannot be written: {error.strerror or error}; check the permissions "
            "of its directory"
        ) from None


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Holds a file lock: no other process changes the lock file there."""
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)  # which lets go of it


_REMEDY = "restore it from git, or remove it and run `ullage check --write`"


def _entry_table(entry: Entry) -> Table:
    """An entry as it is written, without its empty fields."""
    table = {
        name: dict(sorted(value.items())) if isinstance(value, dict) else value
        for name, value in plain(entry).items()
        if value not in ("", None, [], {})
    }
    return {name: table[name] for name in sorted(table, key=_place)}


def _place(name: str) -> int:
    """Where a key is in an entry; others come behind those of this list, unchanged."""
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)


_FIRST = (
    "command", "gpu", "ranks", "allocator", "engine", "torch", "cuda", "ullage", "basis", "assumed",
    "findings", "peak_at",
)  # fmt: skip


Plain: TypeAlias = int | str | Sequence[str]
Table: TypeAlias = "Mapping[str, Plain | Table]"

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 100
# Whole numbers that are no bytes.
_COUNTS = frozenset({"version", "cache_tokens", "good_requests", "requests"})


def render_toml(document: Table, header: Sequence[str] = ()) -> str:
    """The text of a document, under a comment of the lines of `header`."""
    lines = [f"# {line}" for line in header]
    return "\n".join([*lines, *_table_lines((), document)]) + "\n"


def _table_lines(path: tuple[str, ...], table: Table) -> Iterator[str]:
    """The table's own values first, since a sub-table goes on until the next begins."""
    values = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if path and (values or not table):
        yield ""
        yield f"[{'.'.join(map(_key, path))}]"
    for key, value in values.items():
        yield from _value_lines(key, value)
    for key, inner in table.items():
        if isinstance(inner, Mapping):
            yield from _table_lines((*path, key), inner)


def _value_lines(key: str, value: Plain) -> Iterator[str]:
    if isinstance(value, int):
        # A size in words, for whoever reads the difference in a review.
        is_size = abs(value) >= KIB and key not in _COUNTS
        words = f"  # {format_bytes(value, 2)}" if is_size else ""
        yield f"{_key(key)} = {value}{words}"
        return
    if isinstance(value, str):
        yield f"{_key(key)} = {_text(value)}"
        return
    line = f"{_key(key)} = [{', '.join(map(_text, value))}]"
    if len(line) <= _WIDTH:
        yield line
        return
    yield f"{_key(key)} = ["
    yield from (f"  {_text(text)}," for text in value)
    yield "]"


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    """A basic string; a lone surrogate, which no TOML holds, becomes a question mark."""
    known = text.encode("utf-8", "replace").decode()
    # JSON's escapes are TOML's too; DEL alone is not escaped there.
    return json.dumps(known, ensure_ascii=False).replace("\x7f", "\\u007f")
