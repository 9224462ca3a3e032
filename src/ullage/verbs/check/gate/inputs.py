"""The files that a run read of the project, with a digest of each, so that its result holds until
one of them changes.

    inputs = read_inputs(notes, project)            # after the run
    digests = digest_inputs(inputs, began_ns)       # None: it cannot be known what was read
    is_unchanged(digests)                           # later

What players/inside/process/input_files.py notes is all that is known. A file that changed while the
program ran was read in a state that nobody saw, so such a run is not kept; files that the
program itself made first are its own, and no input.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ullage.ground.units import MIB
from ullage.players.inside.process.input_files import IMPORT, LIST, READ, WRITE
from ullage.verbs.check.gate.lock import LOCK_NAME

# A larger file counts as changed when its size or time does.
_MAX_DIGESTED_BYTES = 64 * MIB
_ABSENT, _NO_FILE = "absent", "no regular file"
# What importlib takes for a module, or for what says that a distribution is installed.
_MODULE_SUFFIXES = (".py", ".pyc", ".so", ".dist-info", ".egg-info")
_CACHE_TAG = "__pycache__"
# What a check or Python itself makes in a project is not of the project.
_OURS = frozenset({_CACHE_TAG, ".ullage_cache", LOCK_NAME})


@dataclass(frozen=True, slots=True)
class Inputs:
    """The paths that a run read, listed, and searched for modules."""

    files: frozenset[str]
    lists: frozenset[str]
    imports: frozenset[str]


def read_inputs(notes: Path) -> Inputs | None:
    """The files that a run's processes noted; None where they noted nothing, as without Python."""
    paths_by_kind: dict[str, set[str]] = {READ: set(), WRITE: set(), LIST: set(), IMPORT: set()}
    paths = list(notes.iterdir())
    for path in paths:
        for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            kind, name = json.loads(line)
            paths_by_kind[kind].add(_source(name) if kind == READ else name)
    if not paths:
        return None
    return Inputs(
        frozenset(paths_by_kind[READ]),
        frozenset(paths_by_kind[LIST]),
        frozenset(paths_by_kind[IMPORT]),
    )


def _source(path: str) -> str:
    """The source of a compiled module, or the compiled file where there is no source."""
    directory, name = os.path.split(path)
    parent, tag = os.path.split(directory)
    if tag != _CACHE_TAG:
        return path
    source = f"{parent}/{name.partition('.')[0]}.py"
    return source if Path(source).exists() else path


def digest_inputs(inputs: Inputs, began_ns: int) -> dict[str, str] | None:
    """A digest for each path; None where one changed after `began_ns`, when the program began."""
    for path in (*inputs.files, *inputs.lists):
        if _changed_ns(path) >= began_ns:
            return None
    return {
        **{f"{READ} {path}": digest_file(path) for path in sorted(inputs.files)},
        **{f"{LIST} {path}": _digest_list(path) for path in sorted(inputs.lists)},
        **{f"{IMPORT} {path}": _digest_modules(path) for path in sorted(inputs.imports)},
    }


def is_unchanged(digests: Mapping[str, str]) -> bool:
    """True if no path has changed."""
    digest = {READ: digest_file, LIST: _digest_list, IMPORT: _digest_modules}
    parts = ((key.partition(" "), known) for key, known in digests.items())
    return all(kind in digest and digest[kind](path) == known for (kind, _, path), known in parts)


def digest_files(directory: Path, patterns: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Each file that matches a pattern such as "data/*.bin", with its digest."""
    for pattern in patterns:
        for path in sorted(directory.glob(pattern)):
            if path.is_file():
                yield str(path), digest_file(str(path))


def _changed_ns(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def digest_file(path: str) -> str:
    """A digest of the content of a file; of a large one, of its size and time."""
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):
            return _NO_FILE
        if status.st_size > _MAX_DIGESTED_BYTES:
            return f"{status.st_size} bytes of {status.st_mtime_ns}"
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return _ABSENT


def _digest_list(path: str) -> str:
    return _digest_names(path, lambda entry: entry.name not in _OURS)


def _digest_modules(path: str) -> str:
    """The entries that an import may find there, without the program's own compiled files."""
    return _digest_names(path, _may_be_module)


def _may_be_module(entry: os.DirEntry[str]) -> bool:
    if entry.name.endswith(_MODULE_SUFFIXES):
        return True
    return entry.name.isidentifier() and entry.name != _CACHE_TAG and entry.is_dir()


def _digest_names(path: str, is_counted: Callable[[os.DirEntry[str]], bool]) -> str:
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if is_counted(entry))
    except OSError:
        return _ABSENT
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest()
