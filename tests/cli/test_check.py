"""`ullage check` and its --write where nothing runs: wrong use, reports, formats."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ullage.answers.text import render
from ullage.cli import run_cli
from ullage.explain.basis import BasisKind
from ullage.ground.units import GIB
from ullage.verbs.check.document import check_document, lock_document
from ullage.verbs.check.document_ci import (
    github_annotations,
    github_link,
    github_summary,
    junit_report,
)
from ullage.verbs.check.gate.compare import compare
from ullage.verbs.check.gate.config import load_configuration
from ullage.verbs.check.gate.figures import Measured
from ullage.verbs.check.gate.lock import Entry, Key, Peaks
from ullage.verbs.check.gate.locking import LockReport
from ullage.verbs.check.gate.verdicts import Judged, State
from ullage.verbs.check.text import check_blocks, check_line, locked_blocks
from ullage.verbs.views.views import CheckView

KEY = Key("2.15.0+cu132", "13.2", "l4", "0.1.0", command="train.py")
LOCKED = Entry(
    KEY, Peaks(GIB, GIB, 2 * GIB, 3 * GIB), BasisKind.EXACT, moment="step 1, backward",
    categories={"activation": GIB}, modules={"blocks.*.mlp": GIB},
    places={"train.py in forward": GIB},
)  # fmt: skip
MORE = replace(
    LOCKED, peaks=Peaks(GIB, 2 * GIB, 3 * GIB, 4 * GIB),
    categories={"activation": 2 * GIB}, modules={"blocks.*.mlp": 2 * GIB},
    places={"train.py in forward": 2 * GIB}, findings=("UL121",),
)  # fmt: skip


@pytest.fixture
def view(tmp_path: Path) -> CheckView:
    """Four cases: one passes, one is not locked, one is exceeded, one has failed."""
    (tmp_path / "ullage.toml").write_text('\n[scenario.train]\ncommand = "train.py"\n')
    (tmp_path / "train.py").write_text("pass\n" * 20)
    configuration = load_configuration(tmp_path)
    scenario = configuration.scenarios["train"]

    def judged(name: str, state: State, entry: Entry | None, locked: Entry | None) -> Judged:
        comparisons = (
            ()
            if entry is None
            else (compare(name, entry, locked, budget=scenario.budget, tolerance=None,
                          total_bytes=None),)
        )  # fmt: skip
        measured = {} if entry is None else {name: Measured(entry, {"train.py in forward": (12,)})}
        return Judged(
            name, scenario, state,
            reason="ValueError: a <b> & c at train.py:7 in main" if entry is None else "",
            comparisons=comparisons, measured=measured, missing=(), warnings=(),
            output="Traceback\x1b[0m" if entry is None else "", wall_s=1.5, is_kept=False,
        )  # fmt: skip

    return CheckView(
        configuration.path,
        (
            judged("same", State.PASSED, LOCKED, LOCKED),
            judged("new", State.UNLOCKED, LOCKED, None),
            judged("train", State.EXCEEDED, MORE, LOCKED),
            judged("broken", State.FAILED, None, None),
        ),
        {},
    )


def test_the_report_names_what_grew_and_what_to_do(view: CheckView) -> None:
    text = render(check_blocks(view))
    assert check_line(view) == "failed: 1 of 4 scenarios"
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        r"train +2\.00 GiB +\+1\.00 GiB +3\.00 GiB +4\.00 GiB +exceeded",
        r"allocated 2\.00 GiB, .* more than the lock allows",
        r"At the peak \(step 1, backward\), since it was locked",
        r"activations +1\.00 GiB +2\.00 GiB +\+1\.00 GiB",
        r"blocks\.\*\.mlp +1\.00 GiB +2\.00 GiB",
        r"train\.py:12 in forward +1\.00 GiB",
        r"UL121, which was not found before",
        r"broken: ValueError: a <b> & c at train\.py:7 in main",
        r"ullage check --write new",
        r"ullage check --write train",
    ):
        assert re.search(words, text), f"{words}\n{text}"


def test_junit_is_xml_with_a_case_each(view: CheckView) -> None:
    root = ET.fromstring(junit_report(view))
    (suite,) = root
    assert suite.attrib["tests"] == "4"
    assert (suite.attrib["failures"], suite.attrib["errors"]) == ("1", "1")
    cases = {case.attrib["name"]: case for case in suite.iter("testcase")}
    assert list(cases) == ["same", "new", "train", "broken"]
    assert cases["same"].find("failure") is None
    failure = cases["train"].find("failure")
    assert failure is not None and "more than the lock allows" in failure.attrib["message"]
    error = cases["broken"].find("error")
    assert error is not None and "a <b> & c" in error.attrib["message"]
    assert suite[0].tag == "properties", "Jenkins' schema has none in a test case"
    properties = {one.attrib["name"]: one.attrib["value"] for one in suite[0]}
    assert properties["train peak_allocated_bytes"] == str(2 * GIB)
    assert properties["same peak_allocated_bytes"] == str(GIB)


def test_annotations_are_at_the_line_that_grew(view: CheckView, tmp_path: Path) -> None:
    first, second = github_annotations(view, tmp_path)
    assert first.startswith(
        "::error file=train.py,line=12,title=ullage check%3A train%3A exceeded::"
    )
    assert "%0Acategory activations: +1.00 GiB%0A" in first
    assert "\n" not in first
    assert second.startswith("::error file=train.py,line=7,title=ullage check%3A broken")


def test_an_annotation_without_a_place_is_at_the_scenario(view: CheckView, tmp_path: Path) -> None:
    (tmp_path / "train.py").unlink()
    assert "file=ullage.toml,line=2," in next(iter(github_annotations(view, tmp_path)))


def test_no_more_annotations_than_github_shows(view: CheckView, tmp_path: Path) -> None:
    many = CheckView(view.path, view.judged[2:3] * 30, {})
    lines = list(github_annotations(many, tmp_path))
    assert len(lines) == 11
    assert lines[-1].startswith("::warning ::") and "20 more" in lines[-1]


def test_the_summary_has_the_table_and_the_link(view: CheckView) -> None:
    text = github_summary(view, {"train": "pages/train.html"})
    assert "| train ([page](pages/train.html)) | 2.00 GiB | +1.00 GiB | 3.00 GiB |" in text
    assert "**exceeded**" in text
    assert "\n    ullage check --write train\n" in text
    assert len(github_summary(CheckView(view.path, view.judged * 8000, {}), {})) <= 1_000_000


def test_a_link_of_a_summary_leads_to_the_run_on_github() -> None:
    page = Path("pages/train.html")
    assert github_link(page, {}) == "pages/train.html"
    run = {
        "GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "me/project",
        "GITHUB_RUN_ID": "4711",
    }  # fmt: skip
    link = "https://github.com/me/project/actions/runs/4711#artifacts"
    assert github_link(page, run) == link


def test_the_document_is_json_and_complete(view: CheckView) -> None:
    found: dict[str, Any] = json.loads(json.dumps(check_document(view)))
    assert found["schema"] == "ullage.check/1"
    assert found["exit_code"] == 3
    states = {one["name"]: one["state"] for one in found["scenarios"]}
    assert states == {
        "same": "passed", "new": "not locked", "train": "exceeded", "broken": "failed"
    }  # fmt: skip
    (device,) = found["scenarios"][2]["devices"]
    assert device["found"]["peak_allocated_bytes"] == 2 * GIB
    assert device["locked"]["peak_allocated_bytes"] == GIB
    assert device["by_place"][0]["where"] == "train.py:12 in forward"
    assert {one["level"] for one in device["judgements"] if not one["is_kept"]} == {
        "allocated", "reserved", "used"
    }  # fmt: skip


def test_the_report_of_a_lock(view: CheckView, tmp_path: Path) -> None:
    report = LockReport(tmp_path / "ullage.lock", view.judged, ("new",), ("gone",), ("train",))
    text = render(locked_blocks(report))
    assert "not locked: 1 of 4 scenarios did not go through" in text
    assert re.search(r"train +2\.00 GiB +3\.00 GiB +\+1\.00 GiB +left as it was", text)
    assert "ullage check --write train" in text
    found = lock_document(report)
    assert (found["schema"], found["exit_code"]) == ("ullage.lock/1", 3)
    assert list(found["written"]) == ["new"]
    assert list(found["refused"]) == ["broken"]


WRONG_USE = (
    (["check"], "there is no ullage.toml"),
    (["check", "--write"], "there is no ullage.toml"),
    (["check", "--config", "none.toml"], "'none.toml' cannot be read"),
    (["check", "--write", "--pages", "pages"], "--pages does not go with --write"),
    (["check", "-o", "page.html"], "would hold a page, which this answer does not have"),
    (["check", "--pages", "file"], "is a file; give a directory"),
    (["check", "-o", "memory.xml"], "there is no ullage.toml"),
    (["check", "-o", "file"], "exists; give another name, or --force to overwrite it"),
)


@pytest.mark.parametrize(("words", "message"), WRONG_USE, ids=lambda one: str(one)[:40])
def test_wrong_use_exits_with_2(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert run_cli(words) == 2
    assert message in capsys.readouterr().err


CONFIG = '[scenario.train]\ncommand = "train.py"\n'


@pytest.mark.parametrize(
    ("config", "lock", "words", "message"),
    [
        (CONFIG, "", ["check", "trai"], "did you mean 'train'?"),
        (CONFIG, "version = 9\n", ["check"], "a newer ullage wrote it"),
        (CONFIG, "version = 9\n", ["check", "--write"], "a newer ullage wrote it"),
        (CONFIG, "version = 1\n[\n", ["check"], "restore it from git"),
        (CONFIG, "", ["check"], "scenario 'train' (line 1): there is no file 'train.py'"),
        (CONFIG, "", ["check", "--write", "x"], "there is no scenario 'x'"),
    ],
)
def test_a_wrong_configuration_or_lock_exits_with_2(
    config: str,
    lock: str,
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ullage.toml").write_text(config)
    if lock:
        (tmp_path / "ullage.lock").write_text(lock)
    assert run_cli(words) == 2
    assert message in capsys.readouterr().err
    assert not lock or (tmp_path / "ullage.lock").read_text() == lock
