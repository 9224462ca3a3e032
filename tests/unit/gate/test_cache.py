"""What is kept: found as long as nothing that it depends on changes, and never half of it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ullage.explain.basis import BasisKind
from ullage.verbs.check.gate.cache import Cache, CaseFigures
from ullage.verbs.check.gate.figures import Measured
from ullage.verbs.check.gate.inputs import digest_files, digest_inputs, is_unchanged, read_inputs
from ullage.verbs.check.gate.lock import Entry, Key, Peaks

ENTRY = Entry(
    Key("2.15.0", "13.2", "l4", "0.1.0"),
    Peaks(1, 2, 3, 4),
    BasisKind.EXACT,
    categories={"input": 2},
)
KEPT = CaseFigures({"rank=0": Measured(ENTRY, {"a.py in f": (3, 1)})}, ("a warning",), 1.5)


def note(notes: Path, *lines: tuple[str, Path], pid: int = 1) -> None:
    """What a process notes."""
    notes.mkdir(exist_ok=True)
    text = "".join(json.dumps([kind, str(path)]) + "\n" for kind, path in lines)
    (notes / str(pid)).write_text(text)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A program with a module and a file of data, older than any run."""
    directory = tmp_path / "project"
    (directory / "data").mkdir(parents=True)
    for name in ("train.py", "model.py", "data/a.bin"):
        (directory / name).write_text(name)
        os.utime(directory / name, (1, 1))
    return directory


def digests_of(project: Path, notes: Path) -> dict[str, str]:
    note(
        notes,
        ("read", project / "train.py"),
        ("read", project / "__pycache__" / "model.cpython-311.pyc"),
        ("read", project / "missing.toml"),
        ("write", project / "log.txt"),
        ("list", project / "data"),
        ("import", project),
    )
    inputs = read_inputs(notes)
    assert inputs is not None
    found = digest_inputs(inputs, time.time_ns())
    assert found is not None
    return found


def test_nothing_noted_is_nothing_known(tmp_path: Path) -> None:
    assert read_inputs(tmp_path) is None


def test_a_compiled_file_stands_for_its_source(project: Path, tmp_path: Path) -> None:
    assert f"read {project / 'model.py'}" in digests_of(project, tmp_path / "notes")


@pytest.mark.parametrize(
    "change",
    [
        lambda project: (project / "train.py").write_text("other"),
        lambda project: (project / "model.py").write_text("other"),
        lambda project: (project / "model.py").unlink(),
        lambda project: (project / "missing.toml").write_text(""),
        lambda project: (project / "data" / "b.bin").write_text(""),
        lambda project: (project / "torch.py").write_text(""),
        lambda project: (project / "torch").mkdir(),
    ],
)  # fmt: skip
def test_a_change_of_what_was_read_is_seen(change: object, project: Path, tmp_path: Path) -> None:
    digests = digests_of(project, tmp_path / "notes")
    assert is_unchanged(digests)
    change(project)  # type: ignore[operator]
    assert not is_unchanged(digests)


@pytest.mark.parametrize(
    "change",
    [
        lambda project: (project / "README.md").write_text("other"),
        lambda project: (project / "log.txt").write_text("other"),
        lambda project: (project / "data" / "a.bin").write_text("other"),  # listed, never opened
        lambda project: (project / "__pycache__").mkdir(),
        lambda project: (project / "train.py").touch(),
        lambda project: (project / ".ullage_cache").mkdir(),
    ],
)
def test_a_change_of_anything_else_is_none(change: object, project: Path, tmp_path: Path) -> None:
    digests = digests_of(project, tmp_path / "notes")
    change(project)  # type: ignore[operator]
    assert is_unchanged(digests)


def test_a_file_that_changed_while_the_program_ran_is_not_known(
    project: Path, tmp_path: Path
) -> None:
    began_ns = time.time_ns()
    note(tmp_path / "notes", ("read", project / "train.py"))
    inputs = read_inputs(tmp_path / "notes")
    assert inputs is not None
    assert digest_inputs(inputs, began_ns) is not None
    later = began_ns + 10**9
    os.utime(project / "train.py", ns=(later, later))
    assert digest_inputs(inputs, began_ns) is None


def test_a_pipe_is_not_waited_for(project: Path) -> None:
    os.mkfifo(project / "pipe")
    assert is_unchanged({f"read {project / 'pipe'}": "no regular file"})


def test_patterns_name_files_with_their_contents(project: Path) -> None:
    before = dict(digest_files(project, ("data/*.bin",)))
    assert list(before) == [str(project / "data" / "a.bin")]
    (project / "data" / "a.bin").write_text("other")
    assert dict(digest_files(project, ("data/*.bin",))) != before


def test_what_is_kept_is_found(project: Path, tmp_path: Path) -> None:
    cache = Cache(project / ".ullage_cache")
    assert cache.find("key") is None
    cache.keep("key", KEPT, digests_of(project, tmp_path / "notes"))
    assert cache.find("key") == KEPT
    assert cache.find("other") is None
    assert (project / ".ullage_cache" / ".gitignore").read_text() == "*\n"
    (project / "train.py").write_text("other")
    assert cache.find("key") is None
    os.utime(project / "train.py", (1, 1))
    cache.keep("key", CaseFigures({}, (), 2.5), digests_of(project, tmp_path / "notes"))
    assert cache.find("key") == CaseFigures({}, (), 2.5)
    (project / "train.py").write_text("train.py")
    assert cache.find("key") == KEPT, "both are kept, as for two branches"


def test_a_snapshot_belongs_to_its_figures(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    (tmp_path / "run.pickle").write_bytes(b"snapshot")
    cache.keep_snapshot(ENTRY, tmp_path / "run.pickle")
    found = cache.snapshot_of(ENTRY)
    assert found is not None and found.read_bytes() == b"snapshot"
    assert cache.snapshot_of(replace(ENTRY, peaks=Peaks(1, 2, 3, 5))) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 2, "inputs": {}}'])
def test_half_an_entry_is_none(tmp_path: Path, text: str) -> None:
    cache = Cache(tmp_path)
    cache.keep("key", KEPT, {})
    assert cache.find("key") == KEPT
    (path,) = tmp_path.glob("key-*.json")
    path.write_text(text)
    assert cache.find("key") is None


def test_a_directory_that_takes_nothing_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    cache = Cache(tmp_path / "cache")
    cache.keep("key", KEPT, {})
    assert cache.find("key") is None


def test_what_was_not_used_for_a_month_goes(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.keep("old", KEPT, {})
    (path,) = tmp_path.glob("old-*.json")
    os.utime(path, (1, 1))
    cache.keep("new", KEPT, {})
    assert cache.find("old") is None
    assert cache.find("new") == KEPT
