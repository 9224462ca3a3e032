"""Snapshot files: in from the browser, out as a page, and gone."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage.verbs.ui import snapshots

Ask = Callable[..., Any]
GOLDEN = Path(__file__).parents[2] / "golden" / "snapshots"
TRAINING = lzma.decompress((GOLDEN / "wed_med_train256.pickle.xz").read_bytes())


def send(ask: Ask, content: bytes, name: str = "run.pickle") -> str:
    found: str = ask("POST", f"/snapshots?name={name}", content).json["id"]
    return found


def files_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


def test_a_file_becomes_a_page_and_is_gone(ask: Ask, tmp_path: Path) -> None:
    number = send(ask, TRAINING)
    assert files_in(tmp_path) == ["run.pickle"]
    made = ask("POST", "/pages", {"files": [number]}).json["page"]
    assert files_in(tmp_path) == [f"{made.removeprefix('/pages/')}.html"]
    page = ask("GET", made)
    assert page.status == 200 and b"run.pickle" in page.body
    policy = page.headers["content-security-policy"]
    assert policy.startswith("sandbox") and "default-src 'none'" in policy
    assert "allow-same-origin" not in policy
    assert "choose it again" in ask("POST", "/pages", {"files": [number]}).json["problem"]


def test_two_files_are_compared(ask: Ask, tmp_path: Path) -> None:
    numbers = [send(ask, TRAINING, "before.pickle"), send(ask, TRAINING, "after.pickle")]
    page = ask("GET", ask("POST", "/pages", {"files": numbers}).json["page"])
    assert b"before.pickle and after.pickle" in page.body
    assert [name for name in files_in(tmp_path) if name.endswith(".pickle")] == []


def test_what_is_no_snapshot_is_told_and_is_gone(ask: Ask, tmp_path: Path) -> None:
    answer = ask("POST", "/pages", {"files": [send(ask, b"hello")]})
    assert answer.status == 200 and "run.pickle" in answer.json["problem"]
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    "name", ["../../evil", "..", ".", "", "a/b\\c", "%00", "..%2f..%2fevil", "x" * 400]
)
def test_a_name_stays_in_its_directory(ask: Ask, tmp_path: Path, name: str) -> None:
    send(ask, b"hello", name)
    (found,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert found.parent.parent == tmp_path


def test_too_large_a_file_is_refused_and_not_kept(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "LARGEST_BYTES", 2**16)
    assert ask("POST", "/snapshots?name=x", b"x" * 2**17).status == 413
    assert files_in(tmp_path) == []


def test_files_that_nobody_asks_for_do_not_pile_up(ask: Ask, tmp_path: Path) -> None:
    for number in range(7):
        send(ask, b"hello", str(number))
    assert files_in(tmp_path) == ["3", "4", "5", "6"]


@pytest.mark.parametrize("files", [[], ["a", "b", "c"], ["none"]])
def test_a_page_is_made_of_one_or_two_files_that_are_there(ask: Ask, files: list[str]) -> None:
    assert ask("POST", "/pages", {"files": files}).json["problem"].startswith("files:")
