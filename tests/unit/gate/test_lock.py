"""The lock file: what is written is read, nothing of the machine is in it, and nobody loses an
entry.
"""

from __future__ import annotations

import multiprocessing
import string
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.explain.basis import BasisKind
from ullage.ground.errors import SpecError
from ullage.verbs.check.gate.lock import (
    Entry,
    Key,
    Lock,
    Peaks,
    change_lock,
    parse_lock,
    read_lock,
    render_lock,
)

KEY = Key(torch="2.15.0+cu132", cuda="13.2", gpu="l4", ullage="0.1.0", command="train.py")
ENTRY = Entry(
    KEY, Peaks(1, 512, 2**21, 2**30), BasisKind.ASSUMED, ("a workspace",), "step 1, backward", 0,
    categories={"parameter": 512}, modules={"": 100, "blocks.*.mlp": 412},
    places={"train.py in main": 512}, findings=("UL121",),
)  # fmt: skip

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
sizes = st.integers(min_value=0, max_value=2**50)
tables = st.dictionaries(texts, sizes, max_size=5)
keys = st.builds(Key, *(texts for _ in range(7)))
entries = st.builds(
    Entry,
    key=keys,
    peaks=st.builds(Peaks, sizes, sizes, sizes, sizes),
    basis=st.sampled_from(BasisKind),
    assumed=st.lists(texts, max_size=3).map(tuple),
    moment=texts,
    growth_bytes=st.none() | st.integers(min_value=-(2**50), max_value=2**50),
    categories=tables,
    modules=tables,
    places=tables,
    findings=st.lists(texts, max_size=3).map(tuple),
)
locks = st.builds(
    Lock,
    st.dictionaries(texts, entries, max_size=3),
    st.dictionaries(texts, entries, max_size=3),
)


@given(locks)
def test_what_is_written_is_what_is_read(lock: Lock) -> None:
    text = render_lock(lock)
    assert parse_lock(text) == lock
    assert render_lock(parse_lock(text)) == text


@given(st.permutations(list(string.ascii_lowercase[:6])))
def test_the_order_of_what_is_locked_makes_no_difference(names: list[str]) -> None:
    one = Lock(dict.fromkeys(names, ENTRY))
    assert render_lock(one) == render_lock(Lock(dict.fromkeys(sorted(names), ENTRY)))


def test_what_one_scenario_changes_leaves_the_lines_of_others() -> None:
    before = render_lock(Lock({"a": ENTRY, "c": ENTRY})).splitlines()
    after = render_lock(Lock({"a": ENTRY, "b": ENTRY, "c": ENTRY})).splitlines()
    added = [line for line in after if ".b" in line]
    assert added
    assert [line for line in after if line in before or ".b" in line] == after
    assert len(after) == len(before) + len(render_lock(Lock({"b": ENTRY})).splitlines()) - 3


def test_a_reviewer_reads_sizes_in_words() -> None:
    assert "peak_used_bytes = 1073741824  # 1.00 GiB" in render_lock(Lock({"train": ENTRY}))


def test_a_lone_surrogate_in_a_name_does_not_stop_the_lock() -> None:
    text = render_lock(
        Lock({"train": Entry(KEY, ENTRY.peaks, BasisKind.EXACT, modules={"\ud800": 1})})
    )
    assert tomllib.loads(text)["scenario"]["train"]["modules"] == {"?": 1}


def test_no_file_is_an_empty_lock(tmp_path: Path) -> None:
    assert read_lock(tmp_path / "ullage.lock") == Lock()


DAMAGED = {
    "a newer version": ("version = 2\n", "a newer ullage wrote it; update ullage"),
    "no version": ("[scenario.train]\n", "version=None, expected 1"),
    "a version that is none": ('version = "x"\n', "version='x', expected 1"),
    "no TOML": ("version = 1\n[scenario\n", "line 2"),
    "a merge conflict": ("version = 1\n<<<<<<< HEAD\n", "marks of a merge conflict"),
    "a missing figure": (
        'version = 1\n[scenario.train]\nbasis = "exact"\n',
        "scenario.train.peak_requested_bytes is missing",
    ),
    "a text for a figure": (
        render_lock(Lock({"train": ENTRY})).replace("= 512", '= "512"', 1),
        "is '512'",
    ),
    "a basis that is none": (
        render_lock(Lock({"train": ENTRY})).replace('"assumed"', '"maybe"'),
        "scenario.train.basis is 'maybe'; expected one of exact, ",
    ),
    "an unknown key": (
        render_lock(Lock({"train": ENTRY})).replace("gpu =", "gppu ="),
        "scenario.train has no key 'gppu'; did you mean 'gpu'?",
    ),
    "an unknown table": ("version = 1\n[other]\n", "the file has no key 'other'"),
    "a scenario that is none": ("version = 1\nscenario = 3\n", "scenario is 3; expected a table"),
    "a size that is none": (
        render_lock(Lock({"train": ENTRY})).replace("parameter = 512", "parameter = true"),
        "scenario.train.categories.parameter is true; expected a whole number",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_lock_is_an_error_that_says_what_and_what_to_do(name: str) -> None:
    text, message = DAMAGED[name]
    with pytest.raises(SpecError) as raised:
        parse_lock(text)
    assert message in str(raised.value)
    assert "ullage.lock" in str(raised.value)
    assert "update ullage" in str(raised.value) or "run `ullage check --write`" in str(raised.value)


def test_a_change_that_changes_nothing_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "ullage.lock"
    change_lock(path, lambda lock: lock.with_scenarios({"train": ENTRY}))
    before = path.stat()
    change_lock(path, lambda lock: lock.with_scenarios({"train": ENTRY}))
    assert path.stat().st_ino == before.st_ino
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_an_entry_can_be_taken_out_and_tests_have_a_table_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "ullage.lock"
    change_lock(path, lambda lock: lock.with_scenarios({"a": ENTRY, "b": ENTRY}))
    change_lock(path, lambda lock: lock.with_tests({"tests/test_x.py::test_y[1]": ENTRY}))
    after = change_lock(path, lambda lock: lock.with_scenarios({"a": None}))
    assert after == read_lock(path)
    assert set(after.scenarios) == {"b"}
    assert set(after.tests) == {"tests/test_x.py::test_y[1]"}


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "ullage.lock"
    change_lock(path, lambda lock: lock.with_scenarios({"a": ENTRY}))
    text = path.read_text()

    def fail(lock: Lock) -> Lock:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        change_lock(path, fail)
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be written"):
        change_lock(tmp_path / "missing" / "ullage.lock", lambda lock: lock)


def _add(path: Path, name: str) -> None:
    for number in range(20):
        entries = {f"{name}{number}": ENTRY}
        change_lock(path, lambda lock, entries=entries: lock.with_scenarios(entries))  # type: ignore[misc]


def test_four_processes_that_lock_at_once_lose_no_entry(tmp_path: Path) -> None:
    path = tmp_path / "ullage.lock"
    context = multiprocessing.get_context("spawn")
    start: Callable[[str], multiprocessing.process.BaseProcess] = lambda name: context.Process(  # noqa: E731
        target=_add, args=(path, name)
    )
    processes = [start(name) for name in "abcd"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(read_lock(path).scenarios) == 80
