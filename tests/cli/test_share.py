"""`ullage explain --share`: writes a copy that can be shared, and says what it changed."""

from __future__ import annotations

import pickle
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from ullage.cli import run_cli

HOME = "/home"
PLACE = f"{HOME}/alice/project/train.py"


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that tells a lot, made on this machine."""
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-node-7")
    frames = [{"filename": PLACE, "line": 3, "name": "step_apollo"}]
    event = {"action": "alloc", "addr": 2**46, "size": 512, "stream": 0, "frames": frames,
             "user_metadata": "alice on gpu-node-7"}  # fmt: skip
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[event]]}))
    return path


def read_event(path: Path) -> Any:
    return pickle.loads(path.read_bytes())["device_traces"][0][0]


def test_it_writes_a_copy_and_tells_what_it_changed(
    snapshot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, shared = snapshot.read_bytes(), snapshot.with_name("shared.pickle")
    assert run_cli(["explain", str(snapshot), "--share", str(shared), "--hide", "apollo"]) == 0
    event = read_event(shared)
    assert re.fullmatch(r"[0-9a-f]{8}/train\.py", event["frames"][0]["filename"])
    assert event["frames"][0]["name"] == "step_removed"
    assert event["user_metadata"] == "removed on removed"
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "0 paths made relative, 1 hashed, 2 other texts cleaned, 0 removed",
        f"Wrote {shared}",
    ]
    assert snapshot.read_bytes() == before
    assert {path.name for path in snapshot.parent.iterdir()} == {"shared.pickle", "snapshot.pickle"}


def test_directories_are_hashed_anew_each_time_but_for_a_key(
    snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(snapshot.parent)
    names = []
    for number, key in enumerate(("", "", 'key = "k"', 'key = "k"')):
        Path("ullage.toml").write_text(f"[explain]\n{key}\n")
        shared = snapshot.with_name(f"shared-{number}.pickle")
        assert run_cli(["explain", str(snapshot), "--share", str(shared)]) == 0
        names.append(read_event(shared)["frames"][0]["filename"])
    assert names[0] != names[1] != names[2] == names[3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.pickle", "--share", "out.pickle"], "cannot read 'missing.pickle': No such file"),
        (
            ["other.txt", "--share", "out.pickle"],
            "cannot read 'other.txt': it is text; exp",
        ),
        (
            ["snapshot.pickle", "--share", "other.txt"],
            "'other.txt' exists; give another name, or",
        ),
        (["snapshot.pickle", "--share", "no/out.pickle"], "there is no directory 'no'"),
        (["snapshot.pickle", "--share", "snapshot.pickle"], "'snapshot.pickle' exists; give"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_is_written(
    snapshot: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(snapshot.parent)
    Path("other.txt").write_text("hello")
    assert run_cli(["explain", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not Path("out.pickle").exists()
    assert Path("other.txt").read_text() == "hello"
