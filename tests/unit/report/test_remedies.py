"""What to do about a program that ran out of memory, as the report of its run has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ullage.answers.text import render
from ullage.explain.program import Program
from ullage.explain.rules.registry import RULES
from ullage.explain.rules.rule import Finding
from ullage.explain.run import RunReport, explain_run
from ullage.explain.trial import MakesItFit, Trial
from ullage.facts.gpus.catalog import Gpu
from ullage.ground.protocol.plain import plain
from ullage.log.model import Record
from ullage.verbs.run.text import run_blocks


def finding(code: str, answer: MakesItFit | None, what: str = "") -> Finding:
    """A finding whose remedy has an answer."""
    trial = None if answer is None else Trial(answer, "as was tried", 5, {"actions": []})
    return Finding(
        rule=RULES[code], device=0, what=what or f"{code} was found", evidence=("a line",),
        gain_bytes=7, change=RULES[code].change, is_guess=False,
        blocks=np.array([0]), trial=trial,
    )  # fmt: skip


@pytest.fixture
def report(make_record: Callable[..., Record], program: Program, small_gpu: Gpu) -> RunReport:
    """A run whose one process left a record."""
    record = make_record("+4 F +3 f B -3 b O o S")
    return explain_run(
        [(record, "out.pickle")], program=program, torch="2.15.0", gpu=small_gpu,
        is_unlimited=False,
    )  # fmt: skip


def with_findings(report: RunReport, *findings: Finding) -> RunReport:
    return replace(report, processes=(replace(report.processes[0], findings=findings),))


def test_the_first_three_are_shown_and_all_that_help(report: RunReport) -> None:
    no, yes = MakesItFit.NO, MakesItFit.YES
    answers = {"UL151": no, "UL121": no, "UL125": no, "UL101": no, "UL114": yes}
    text = render(
        run_blocks(with_findings(report, *(finding(c, a) for c, a in answers.items()))), full=True
    )
    part = text[text.index("What to do") :]
    assert [code for code in answers if code in part] == ["UL151", "UL121", "UL125", "UL114"]
    assert part.count("makes it fit: no: as was tried") == 3
    assert "makes it fit: yes: as was tried" in part
    assert "and 1 more: ullage explain out.pickle" in part
    assert "ullage fit" not in part


def test_where_nothing_alone_helps_mixtures_are_named(report: RunReport) -> None:
    text = render(
        run_blocks(with_findings(report, *[finding("UL121", MakesItFit.NO)] * 2)), full=True
    )
    assert "`ullage fit` looks for mixtures" in text


def test_a_run_without_findings_has_no_such_part(report: RunReport) -> None:
    assert "What to do" not in render(run_blocks(report), full=True)


def test_the_document_says_what_was_tried() -> None:
    assert plain(finding("UL121", MakesItFit.NOT_KNOWN))["tried"] == {
        "makes_it_fit": "not_known", "reason": "as was tried", "bytes": 5, "plan": {"actions": []},
    }  # fmt: skip
    assert plain(finding("UL121", None))["tried"] is None


def test_the_document_of_a_run_without_a_failure_lists_no_findings(report: RunReport) -> None:
    assert plain(report)["oom"] is None
