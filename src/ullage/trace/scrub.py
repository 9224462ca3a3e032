"""Takes out of a snapshot what says where and by whom it was made, before it is shared.

    with open("shared.pickle", "wb") as shared:
        scrub_snapshot(Path("snapshot.pickle"), shared, key=b"")

The file is copied but for its texts, so that everything else stays as it is, and any viewer of
PyTorch's opens it. Of the texts:

- a path becomes relative to site-packages, Python's library or PyTorch's sources; of any other the
  directory becomes a few letters, the same for the same directory and key;
- names of users that paths tell (/home/NAME), and words that are given, become "removed";
- so do in free texts what follows NAME= in capitals, addresses of mail, machines and web pages;
- command lines in ullage's record, and all texts that are not of PyTorch's format, go as a whole.

Names of functions and modules stay: without them a snapshot says little.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, BinaryIO

import numpy as np

from ullage.errors import SnapshotError
from ullage.trace.compact import is_compact
from ullage.trace.plain import ABSENT, DICT, TEXT, PlainFile, read_plain
from ullage.trace.snapshot_reader import FORMAT_TEXTS, TOP_KEYS, parse_snapshot

REMOVED = "removed"
# Users of machines and containers that are nobody.
_NOBODY = frozenset({"root", "user", "users", "shared", "public", "default", "runner", "ubuntu"})
_MIN_NAME = 3
_COPY_BYTES = 1 << 20
_SHORT_TEXT, _LONG_TEXT, _MAX_SHORT = 0x8C, ord("X"), 255

_USER = re.compile(r"(?:/home/|/Users/|[\\/]Users\\|(?:^|[\s\"'=])~)([A-Za-z_][\w.-]*)")
_IS_PATH = re.compile(r"(?:/|~|[A-Za-z]:[\\/]|\\\\|file:)")
_PATH = re.compile(
    r"(?<![\w./\\:-])(?:file:/{0,2}|~)?(?:/[\w.@+~=%,-]+){2,}/?|(?<!\w)[A-Za-z]:\\[^\s\"'<>|:*?]+"
)
# What comes before the part of a path that says which code it is; the first that is found counts.
_ROOTS = tuple(
    re.compile(pattern)
    for pattern in (
        r"^.*[/\\](?:site|dist)-packages[/\\]",
        r"^.*[/\\](?=python\d[\d.]*t?[/\\])",
        r"^.*?[/\\](?=(?:aten/src|torch/(?:csrc|nn|_\w+|utils|optim|autograd)|c10/\w+)[/\\])",
    )
)
_SECRETS = (
    re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+"),
    re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b"),
    re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"),
    re.compile(r"(?<=[A-Z0-9_]{3}=)[^\s\"',;]+"),
    re.compile(r"(?i)(?<=host=)[^\s\"',;]+|(?<=hostname=)[^\s\"',;]+"),
)


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """What was changed: how many different texts, by what happened to them, and how many names."""

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
        rules = _Rules(key, frozenset(words) | _find_users(texts))
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
    """The texts of a snapshot, and what each is for."""

    def __init__(self, file: PlainFile) -> None:
        snapshot = parse_snapshot(file)
        self._file = file
        self.values = sorted({value for value in file.spots()[2].tolist() if value & 7 == TEXT})
        record = snapshot.record or {}
        self.fixed = FORMAT_TEXTS | set(_keys_in(record)) | set(_keys_in(snapshot.settings))
        self.paths = set(snapshot.stacks.frames.file)
        foreign = [
            file.python(value) for name, value in _items(file, file.root) if name not in TOP_KEYS
        ]
        private = set(_texts_in([record.get("argv"), foreign]))
        self.private = private - self.fixed - self.paths - set(snapshot.stacks.frames.function)

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
        for one in value:
            yield from _texts_in(one)


def _keys_in(value: Any) -> Iterator[str]:  # noqa: ANN401
    if isinstance(value, dict):
        yield from (key for key in value if isinstance(key, str))
        yield from _keys_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _keys_in(one)


def _find_users(texts: _Texts) -> frozenset[str]:
    """Who has a home in a path; not who is called like a package, whose frames would be lost."""
    packages = set(_NOBODY)
    for path in texts.paths:
        for root in _ROOTS:
            if found := root.match(path):
                packages.update(re.split(r"[/\\.]", path[found.end() :].lower()))
    users = {name for text in texts.all() for name in _USER.findall(text)}
    return frozenset(n for n in users if len(n) >= _MIN_NAME and n.lower() not in packages)


class _Rules:
    """What is removed, and how paths are hashed."""

    def __init__(self, key: bytes, names: frozenset[str]) -> None:
        self._key = hashlib.blake2b(key).digest()
        self.num_names = len(names)
        longest_first = sorted(map(re.escape, names), key=lambda name: (-len(name), name))
        any_name = "|".join(longest_first)
        self._name = re.compile(rf"(?i)(?<![a-z0-9])(?:{any_name})(?![a-z0-9])") if names else None

    def without_names(self, text: str) -> str:
        """The text without the names of users and the words that were given."""
        return self._name.sub(REMOVED, text) if self._name else text

    def path(self, path: str) -> tuple[str, str]:
        """What becomes of a path, in one word, and the path that it becomes."""
        for root in _ROOTS:
            if found := root.match(path):
                return "relative", self.without_names(path[found.end() :])
        whole = PureWindowsPath(path)  # knows both kinds of slashes
        letters = hashlib.blake2b(str(whole.parent).encode(), key=self._key, digest_size=4)
        return "hashed", f"{letters.hexdigest()}/{self.without_names(whole.name)}"

    def free_text(self, text: str) -> str:
        """The text without what is private in it."""
        text = _PATH.sub(lambda found: self.path(found[0])[1], text)
        for secret in _SECRETS:
            text = secret.sub(REMOVED, text)
        return self.without_names(text)


def _change(text: str, texts: _Texts, rules: _Rules) -> tuple[str, str]:
    """What happens to a text, in one word, and what it becomes."""
    if text in texts.fixed:
        return "kept", text
    if text in texts.private:
        return "removed", REMOVED
    if text in texts.paths and _IS_PATH.match(text):
        return rules.path(text)
    return "cleaned", rules.free_text(text)


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
    """So many bytes; None is all that are left."""
    while num_bytes is None or num_bytes > 0:
        part = read.read(_COPY_BYTES if num_bytes is None else min(num_bytes, _COPY_BYTES))
        if not part:
            return
        written.write(part)
        if num_bytes is not None:
            num_bytes -= len(part)


def _text_opcode(text: str, opcode: bytes) -> bytes:
    """A text as a pickle has it; the short form only where it was there, which is of protocol 4."""
    content = text.encode()
    if opcode[0] == _SHORT_TEXT and len(content) <= _MAX_SHORT:
        return struct.pack("<BB", _SHORT_TEXT, len(content)) + content
    return struct.pack("<BI", _LONG_TEXT, len(content)) + content
