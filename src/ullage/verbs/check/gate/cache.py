"""The cache of results: each is valid until something that it depends on changes.

    cache = Cache(project / ".ullage_cache")
    result = cache.find(key)                        # None: the case has to be run
    cache.keep(key, result, digests)
    cache.snapshot_of(locked)                       # the snapshot of that entry, if it is here

An entry is a file that is written atomically, so that neither two checks at once nor a killed one
corrupt the cache. A file that cannot be read counts as absent. Snapshots lie next to the entries,
under a digest of their figures.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ullage.ground.files import keep_file, make_directory, write_text
from ullage.ground.parsing import parse_json, read_bounded
from ullage.ground.protocol.plain import JSON, plain
from ullage.ground.units import MIB
from ullage.verbs.check.gate.figures import Measured
from ullage.verbs.check.gate.inputs import is_unchanged
from ullage.verbs.check.gate.lock import Entry, Lock, render_lock

CACHE_NAME = ".ullage_cache"
_VERSION = 2
_DIGITS = 32
_KEPT_S = 30 * 24 * 3600
_KEPT_BYTES = 512 * MIB


@dataclass(frozen=True, slots=True)
class CaseFigures:
    """The result of a run that ended normally: the figures of each device, and the warnings."""

    measured: Mapping[str, Measured]
    warnings: tuple[str, ...]
    wall_s: float


@dataclass(frozen=True, slots=True)
class _Stored:
    """An entry: what the run depended on, by digest, and its result."""

    version: int
    inputs: Mapping[str, str]
    figures: CaseFigures


class Cache:
    """A directory of earlier results; it stays empty where the disk cannot be written to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, key: str) -> CaseFigures | None:
        """The result stored under a key, if no file that it depends on has changed since."""
        for path in self._directory.glob(f"{key}-*.json"):
            with contextlib.suppress(OSError, ValueError):
                stored = JSON.read(_Stored, parse_json(read_bounded(path)))
                if stored.version == _VERSION and is_unchanged(stored.inputs):
                    _touch(path)
                    return stored.figures
        return None

    def keep(self, key: str, result: CaseFigures, inputs: Mapping[str, str]) -> None:
        """Stores the result of a run, with the digests of the files that it read."""
        stored = _Stored(_VERSION, inputs, result)
        with contextlib.suppress(OSError):
            self._make()
            path = self._directory / f"{key}-{_digest(json.dumps(dict(inputs)))}.json"
            write_text(json.dumps(plain(stored)), path, force=True)
            self._prune()

    def snapshot_of(self, entry: Entry) -> Path | None:
        """The snapshot of a run with these figures."""
        path = self._snapshot(entry)
        if not path.is_file():
            return None
        _touch(path)
        return path

    def keep_snapshot(self, entry: Entry, snapshot: Path) -> None:
        """Stores the snapshot of a run with these figures."""
        with contextlib.suppress(OSError):
            self._make()
            keep_file(snapshot, self._snapshot(entry), force=True)

    def _snapshot(self, entry: Entry) -> Path:
        return self._directory / f"{_digest(render_lock(Lock({'': entry})))}.pickle"

    def _make(self) -> None:
        """The directory, with a .gitignore in it."""
        make_directory(self._directory)
        ignore = self._directory / ".gitignore"
        if not ignore.exists():
            write_text("*\n", ignore, force=True)

    def _prune(self) -> None:
        """Removes entries unused for a month, then the oldest above the size limit."""
        now, total = time.time(), 0
        files = [(path.stat(), path) for path in self._directory.glob("*.*")]
        for status, path in sorted(files, key=lambda pair: -pair[0].st_mtime):
            total += status.st_size
            if now - status.st_mtime > _KEPT_S or total > _KEPT_BYTES:
                path.unlink(missing_ok=True)


def _touch(path: Path) -> None:
    """Marks an entry as used now."""
    with contextlib.suppress(OSError):
        os.utime(path)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
