"""Takes out of a snapshot what says where and by whom it was made, before it is shared.

    with open("shared.pickle", "wb") as shared:
        scrub_snapshot(Path("snapshot.pickle"), shared, key=b"")

The file is copied but for its texts, so that everything else stays unchanged, and any viewer of
PyTorch's opens it. Of the texts:

- a path becomes relative to site-packages, Python's library or PyTorch's sources; of any other the
  directory becomes a few letters, the same for the same directory and key;
- names of users that paths tell (/home/NAME), and words that are given, become "removed";
- so do in free texts what follows NAME= in capitals, addresses of mail, machines and web pages;
- command lines in ullage's record, and all texts that are not of PyTorch's format, go as a whole.

Names of functions and modules stay: without them a snapshot says little.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ullage.ground.errors import SnapshotError
from ullage.ground.printable import printable, printable_lines, printable_name
from ullage.log.compact_format.compact import is_compact
from ullage.log.plain import ABSENT, DICT, TEXT, PlainFile, read_plain
from ullage.log.scrubbing.scrub_rules import IS_PATH, REMOVED, ROOTS, USER, ScrubRules
from ullage.log.snapshot import as_posix
from ullage.log.snapshot_reader import FORMAT_TEXTS, TOP_KEYS, parse_snapshot

# Users of machines and containers that are nobody.
_NOBODY = frozenset({"root", "user", "users", "shared", "public", "default", "runner", "ubuntu"})
_MIN_NAME = 3
_COPY_BYTES = 1 << 20
_SHORT_TEXT, _LONG_TEXT, _MAX_SHORT = 0x8C, ord("X"), 255


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """The number of different texts that were changed, by the kind of change, and of names."""

    num_relative: int
    num_hashed: int
    num_cleaned: int
    num_removed: int
    num_names: int


def scrub_snapshot(
    source: Path, target: BinaryIO, *, key: bytes, words: Sequence[str] = ()
) -> Scrubbed:
    """Writes a copy of a snapshot without paths and names.

    Args:
        source: a pickle of PyTorch's or of `ullage run`.
        target: where to; another file than the source.
        key: what directories are hashed with; the same key gives the same names in several files.
        words: what is removed besides, wherever it stands as a word.

    Raises:
        SnapshotError: the source cannot be read, or is not a memory snapshot.
        OSError: the target cannot be written.
    """
    if is_compact(source):
        raise SnapshotError(
            f"{str(source)!r} is a compact file of ullage; give the snapshot that it was made of"
        )
    with read_plain(source, keeps_spots=True) as file:
        try:
            texts = _Texts(file)
        except SnapshotError as error:
            raise SnapshotError(f"cannot read {str(source)!r}: {error}") from None
        rules = ScrubRules(key, frozenset(words) | _find_users(texts))
        changes: dict[int, str] = {}
        done: Counter[str] = Counter()
        for value in texts.values:
            text = file.text(value)
            what, changed = _change(text, texts, rules)
            if changed != text:
                changes[value] = changed
                done[what] += 1
        with source.open("rb") as read:
            _copy(read, target, file, changes)
    return Scrubbed(
        num_relative=done["relative"],
        num_hashed=done["hashed"],
        num_cleaned=done["cleaned"],
        num_removed=done["removed"],
        num_names=rules.num_names,
    )


class _Texts:
    def __init__(self, file: PlainFile) -> None:
        snapshot = parse_snapshot(file)
        self._file = file
        self.values = sorted({value for value in file.spots()[2].tolist() if value & 7 == TEXT})
        record = snapshot.record or {}
        self.fixed = FORMAT_TEXTS | set(_keys_in(record)) | set(_keys_in(snapshot.settings))
        ended, ooms = record.get("exit"), record.get("ooms")
        rows = [ended, *ooms] if isinstance(ooms, list) else [ended]
        self.messages = {
            row["message"] for row in rows
            if isinstance(row, dict) and isinstance(row.get("message"), str)
        }  # fmt: skip
        self.paths = set(snapshot.stacks.frames.file)
        foreign = [
            file.python(value) for name, value in _items(file, file.root) if name not in TOP_KEYS
        ]
        private = set(_texts_in([record.get("argv"), foreign]))
        self.private = {
            text for text in private - self.fixed - set(snapshot.stacks.frames.function)
            if not self.is_path(text)
        }  # fmt: skip

    def is_path(self, text: str) -> bool:
        """True if a text is the file of a frame, whichever slashes it has."""
        return printable_name(as_posix(text)) in self.paths

    def all(self) -> Iterator[str]:
        """Every different text of the file."""
        return map(self._file.text, self.values)


def _items(file: PlainFile, value: int) -> Iterator[tuple[str, int]]:
    if value & 7 == DICT:
        for key, item in zip(file.keys(value).tolist(), file.items(value).tolist(), strict=True):
            yield file.text(key) if key & 7 == TEXT else "", item


def _texts_in(value: Any) -> Iterator[str]:  # noqa: ANN401 - whatever a file holds
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts_in(list(value))
        yield from _texts_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _texts_in(entry)


def _keys_in(value: Any) -> Iterator[str]:  # noqa: ANN401
    if isinstance(value, dict):
        yield from (key for key in value if isinstance(key, str))
        yield from _keys_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _keys_in(entry)


def _find_users(texts: _Texts) -> frozenset[str]:
    """Who has a home in a path; not who is called like a package, whose frames would be lost."""
    packages = set(_NOBODY)
    for path in texts.paths:
        for root in ROOTS:
            if match := root.match(path):
                packages.update(re.split(r"[/\\.]", path[match.end() :].lower()))
    users = {name for text in texts.all() for name in USER.findall(text)}
    return frozenset(n for n in users if len(n) >= _MIN_NAME and n.lower() not in packages)


def _change(text: str, texts: _Texts, rules: ScrubRules) -> tuple[str, str]:
    """The change of a text, in one word, and the text that it becomes."""
    if text in texts.fixed and printable(text) == text:
        return "kept", text
    if text in texts.private:
        return "removed", REMOVED
    line = printable(text)  # as readers have it
    if texts.is_path(text) and IS_PATH.match(line):
        return rules.path(line)
    is_message = text in texts.messages
    return "cleaned", rules.free_text(printable_lines(text) if is_message else line)


def _copy(read: BinaryIO, written: BinaryIO, file: PlainFile, changes: dict[int, str]) -> None:
    """Copies a pickle, its texts changed. Its frames, whose lengths would be wrong, are left out;
    they only say how far to read ahead.
    """
    place = 0
    begins, ends, values = file.spots()
    is_changed = np.isin(values, np.array([*changes, ABSENT], dtype=np.uint64))
    for begin, end, value in zip(
        begins[is_changed].tolist(),
        ends[is_changed].tolist(),
        values[is_changed].tolist(),
        strict=True,
    ):
        _copy_part(read, written, begin - place)
        if value != ABSENT:
            written.write(_text_opcode(changes[value], read.read(1)))
        read.seek(end)
        place = end
    _copy_part(read, written, None)


def _copy_part(read: BinaryIO, written: BinaryIO, num_bytes: int | None) -> None:
    """This many bytes; None is all that are left."""
    while num_bytes is None or num_bytes > 0:
        part = read.read(_COPY_BYTES if num_bytes is None else min(num_bytes, _COPY_BYTES))
        if not part:
            return
        written.write(part)
        if num_bytes is not None:
            num_bytes -= len(part)


def _text_opcode(text: str, opcode: bytes) -> bytes:
    """A text for a pickle; the short form, which is of protocol 4, only where it was there."""
    content = text.encode()
    if opcode[0] == _SHORT_TEXT and len(content) <= _MAX_SHORT:
        return struct.pack("<BB", _SHORT_TEXT, len(content)) + content
    return struct.pack("<BI", _LONG_TEXT, len(content)) + content
