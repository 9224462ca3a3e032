"""A file whose every text is an attack: nothing of it reaches an output but as letters."""

from __future__ import annotations

import json
import pickle
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ullage.answers.text import render
from ullage.cli import run_cli
from ullage.explain.basis import BasisKind
from ullage.explain.run import RunReport
from ullage.log.reader import parse_record
from ullage.verbs.check.document_ci import github_annotations, github_summary, junit_report
from ullage.verbs.check.gate.compare import compare
from ullage.verbs.check.gate.config import load_configuration
from ullage.verbs.check.gate.figures import Measured
from ullage.verbs.check.gate.lock import Entry, Key, Peaks
from ullage.verbs.check.gate.verdicts import Judged, State
from ullage.verbs.check.text import check_blocks
from ullage.verbs.diff.function import diff
from ullage.verbs.explain.function import explain_file
from ullage.verbs.run.text import run_blocks, verdict_line
from ullage.verbs.views.views import CheckView

EVIL = "\x1b]0;t\x07\x1b[2J\n::error file=a::b\r\t\x9b31m\u202e\u2028\x85\udcff[red]m[/x]</script>"
# What no output may hold but as a line break of our own.
CONTROL = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
SCRIPT = "[64 w+4@main:3>layer:7=parameter F a+8@main:3>layer:9 f B a- b O o S b+32@main:4 !64:2"


def check(text: str, *, is_for_github: bool = True) -> None:
    """Nothing but what is for display, and no line that GitHub would take for a command."""
    found = CONTROL.search(text)
    assert found is None, f"{found[0]!r} in {text[max(found.start() - 80, 0) : found.end() + 20]!r}"
    commands = [one for one in text.splitlines() if one.lstrip().startswith("::error file=a")]
    assert not (is_for_github and commands)


def poison(value: Any) -> Any:
    """The same value, every text that a program may choose an attack; those of the format stay."""
    kept = {"returned", "exception", "START", "END", "large", "small", "inactive", "parameter",
            "active_allocated", "forward_begin", "forward_end", "backward_begin", "step",
            "backward_end", "optimizer_begin", "optimizer_end", "ullage.record/1"}  # fmt: skip
    if isinstance(value, str):
        return value if value in kept else f"{value}{EVIL}"
    if isinstance(value, dict):
        free = {key: value[key] for key in ("action",) if key in value}
        return {**{key: poison(one) for key, one in value.items()}, **free}
    if isinstance(value, list | tuple):
        return type(value)(map(poison, value))
    return value


@pytest.fixture
def raw(file_of: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Such a snapshot, with ullage's record in it."""
    whole: dict[str, Any] = poison(file_of(SCRIPT, has_record=True))
    ended = {"kind": "exception", "exception": f"x.E{EVIL}", "message": f"m{EVIL}",
             "where": f"t.py:3 in f{EVIL}", "code": 1}  # fmt: skip
    whole["ullage"] |= {
        "exit": ended, "warnings": [EVIL], "argv": ["train.py", EVIL], "modules": [EVIL],
        "basis": [["read", EVIL, EVIL, 1, None, 4, None], ["workspace", EVIL, "", 1, 0, 1, 2],
                  ["call", EVIL, "", 1, None, 0, None]],
        "holders": [[1, 0, 1 << 36, EVIL]],
    }  # fmt: skip
    whole["ullage"]["ooms"] = [
        {**one, "message": f"m{EVIL}", "where": EVIL, "ended": EVIL}
        for one in whole["ullage"]["ooms"]
    ]
    whole[EVIL] = 5
    for event in whole["device_traces"][0]:
        event["user_metadata"] = EVIL
    return whole


@pytest.fixture
def path(tmp_path: Path, raw: dict[str, Any]) -> Path:
    """The same, as a file."""
    file = tmp_path / "s.pickle"
    file.write_bytes(pickle.dumps(raw, protocol=4))
    return file


@pytest.mark.parametrize("width", [40, 80, 240])
def test_what_explains_a_snapshot(path: Path, width: int) -> None:
    explanation = explain_file(path)
    text = explanation.text(width, full=True) + explanation.text(width)
    check(text)
    assert width == 40 or "\\x1b]0;t\\x07" in text, "the attack is shown as letters"
    assert "[red]m" in text.replace("\n", "") or width == 40, "and is no markup"
    check(explanation.html)
    check(json.dumps(explanation.document, ensure_ascii=False))


@pytest.mark.parametrize("ending", ["folded", "csv", "perfetto.json", "json", "ullage"])
def test_what_a_snapshot_is_exported_to(path: Path, tmp_path: Path, ending: str) -> None:
    target = tmp_path / f"o.{ending}"
    explain_file(path).export(target)
    if ending == "ullage":  # it is read as a snapshot is
        check(explain_file(target).text(240, full=True))
        return
    text = target.read_text(encoding="utf-8")
    check(text)
    if ending == "folded":
        assert all(line.rpartition(" ")[2].isdecimal() for line in text.splitlines())


def test_the_difference_of_two(path: Path, tmp_path: Path, raw: dict[str, Any]) -> None:
    for one in raw["segments"]:
        one["frames"] = []
    other = tmp_path / "t.pickle"
    other.write_bytes(pickle.dumps(raw, protocol=4))
    found = diff(path, other)
    check(found.text(200))
    check(found.html)


@pytest.mark.parametrize("exit_code", [0, 1])
def test_the_report_of_a_run(
    raw: dict[str, Any], explain: Callable[..., RunReport], exit_code: int
) -> None:
    report = explain(parse_record(raw["ullage"]), argv=("train.py", EVIL), exit_code=exit_code)
    check(render(run_blocks(report), 200, full=True))
    check(json.dumps([*report.warnings, report.reason], ensure_ascii=False))
    check(verdict_line(replace(report, reason=report.reason)))


def test_a_scrubbed_copy(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = tmp_path / "shared.pickle"
    assert run_cli(["explain", str(path), "--share", str(shared)]) == 0
    texts = [text for text in all_texts(pickle.loads(shared.read_bytes())) if "error file=" in text]
    assert texts
    for text in texts:
        check(text, is_for_github=not text.startswith("m\\x1b"))  # messages have lines
    check(capsys.readouterr().err)


def all_texts(value: Any) -> list[str]:
    """Every text in a value."""
    if isinstance(value, str):
        return [value]
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    return [text for one in parts for text in all_texts(one)] if is_many(value) else []


def is_many(value: Any) -> bool:
    return isinstance(value, list | tuple | dict)


def test_errors_about_files_of_such_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"x{EVIL}".replace("/", "")
    for words in (
        ("explain", name), ("estimate", name, "--length", "4"), ("run", "--", name), (name,),
        ("check", "--config", name), ("exec", "--plan", name, "--", "x.py"), ("gpus", name),
        ("explain", f"--{name}"), ("run", "--gpu", name, "--", "a"),
    ):  # fmt: skip
        assert run_cli([*words]) == 2
        said = capsys.readouterr().err
        assert said.startswith("ullage: ")
        check(said)
    (tmp_path / name).write_text("[scenario.x]\ngpu = 5\n")
    assert run_cli(["check", "--config", name]) == 2
    check(capsys.readouterr().err)


@pytest.fixture
def view(tmp_path: Path) -> CheckView:
    """A check of a case that grew and one that failed, by such names."""
    (tmp_path / "ullage.toml").write_text('[scenario.train]\ncommand = "train.py"\n')
    scenario = load_configuration(tmp_path).scenarios["train"]
    key = Key("2.15.0", "13.2", "l4", "0.1.0", command=f"train.py {EVIL}")
    rows = {f"f{EVIL}": 1 << 30}
    old = Entry(key, Peaks(1, 1, 1, 1), BasisKind.EXACT, assumed=(EVIL,), moment=EVIL)
    new = replace(old, peaks=Peaks(*(1 << 30,) * 4), modules=rows, places=rows)
    compared = compare("train", new, old, budget=scenario.budget, tolerance=None, total_bytes=None)
    grown = Judged(
        "train", scenario, State.EXCEEDED, reason="", comparisons=(compared,),
        measured={"train": Measured(new, {})}, missing=(), warnings=(EVIL,), output="",
        wall_s=1.0, is_kept=False,
    )  # fmt: skip
    failed = replace(
        grown, state=State.FAILED, reason=f"E: {EVIL}", comparisons=(), output=f"x{EVIL}"
    )
    return CheckView(tmp_path / "ullage.toml", (grown, failed), {})


def test_a_check_in_ci(view: CheckView, tmp_path: Path) -> None:
    check(render(check_blocks(view), 200), is_for_github=False)
    lines = list(github_annotations(view, tmp_path))
    assert len(lines) == 2
    for line in lines:
        check(line)
        assert line.count("::error") == line.count("::error file=a::b") + 1
    check(github_summary(view, {}), is_for_github=False)
    report = junit_report(view)
    check(report, is_for_github=False)
    assert len(ET.fromstring(report).findall(".//testcase")) == 2


def test_github_heeds_no_line_of_the_report(
    view: CheckView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "ullage.verbs.check.function.check.act",
        lambda _: SimpleNamespace(
            view=view, pages={}, exit_code=1, blocks=lambda: check_blocks(view)
        ),
    )
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert run_cli(["check"]) == 1
    first, *lines = capsys.readouterr().out.splitlines()
    token = first.removeprefix("::stop-commands::")
    assert len(token) > 16
    end = lines.index(f"::{token}::")
    assert any("::error file=a" in line for line in lines[:end])
    assert all(line.startswith("::error file=ullage.toml") for line in lines[end + 1 :])
