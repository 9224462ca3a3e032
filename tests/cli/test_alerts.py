"""`ullage watch --alerts` over recordings: text, JSON, exit codes."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from ullage.cli import run_cli

COURSES = Path(__file__).parents[1] / "golden" / "courses"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ullage.toml").write_text("", encoding="utf-8")


def unpack(name: str) -> str:
    path = Path(f"{name}.jsonl")
    path.write_bytes(lzma.decompress((COURSES / f"{name}.jsonl.xz").read_bytes()))
    return str(path)


def test_a_recording_with_an_alert(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["watch", "--replay", unpack("lost"), "--alerts"]) == 1
    raised, cleared, total = capsys.readouterr().out.splitlines()
    assert "raised critical gpu-lost: GPU 0" in raised
    assert "cleared critical gpu-lost: GPU 0" in cleared
    assert total.startswith("1 alert in ")


def test_a_healthy_recording(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["watch", "--replay", unpack("healthy-validation"), "--alerts"]) == 0
    assert capsys.readouterr().out.startswith("no alert in ")


def test_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["watch", "--replay", unpack("lost"), "--alerts", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "ullage.alerts/1"
    assert [event["event"] for event in document["events"]] == ["raised", "cleared"]
    assert document["raised"] == []


def test_the_rules_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rules.toml").write_text("[watch.alert.gpu-lost]\nenabled = false\n", encoding="utf-8")
    arguments = ["watch", "--replay", unpack("lost"), "--alerts", "--config", "rules.toml"]
    assert run_cli(arguments) == 0
    Path("rules.toml").write_text("[watch.alert.lost]\n", encoding="utf-8")
    assert run_cli(arguments) == 2
    assert "rules.toml:1: watch.alert.lost.kind is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--once", "--alerts"], "does not go with --once"),
        (["--config", "a.toml", "--listen", "0"], "give --alerts too"),
        (["--config", "a.toml"], "a.toml"),
        (["--replay", "none.jsonl", "--alerts"], "cannot be read"),
    ],
)
def test_wrong_use(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["watch", *arguments]) == 2
    assert message in capsys.readouterr().err
