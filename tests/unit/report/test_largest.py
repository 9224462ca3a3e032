"""What is told of a search for the largest size: text and document."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ullage.act.techniques.technique import Action
from ullage.answers.text import render
from ullage.clock.step_time import Interval
from ullage.facts.gpus.catalog import find_gpu
from ullage.ground.protocol.plain import document_of
from ullage.ground.units import GIB
from ullage.search.costs.clocked import Timed
from ullage.search.findings import Seen
from ullage.search.sizes.largest import Answer, LargestReport
from ullage.verbs.largest.text import largest_blocks, largest_line

CHECKPOINT = (Action("checkpoint", ("h.0", "h.1")),)


def answer(name: str, size: int, step_ms: float, *actions: Action, retries: int = 0) -> Answer:
    """One that was seen, and a next size that was not."""
    seen = Seen(fits=True, reason="", used_bytes=7 * GIB, allocated_bytes=6 * GIB,
                num_retries=retries, host_bytes=0)  # fmt: skip
    return Answer(name, actions, size, seen, size + 1, "no room for 1.0 GiB", step_ms / 1e3)


@pytest.fixture
def report() -> LargestReport:
    """A search in which a plan doubles the batch, at a price."""
    plain = answer("unchanged", 10, 100.0)
    best = answer("checkpoint 2 of 2 Layer", 20, 260.0, *CHECKPOINT, retries=3)
    return LargestReport(
        program=("train.py", "--batch-size", "{batch}"), variable="batch", step=1, torch="2.15.0",
        gpu=find_gpu("rtx-3070"), budget_bytes=8 * GIB, as_it_is=plain, answers=(best, plain),
        left_out={"flash_attention": "no attention"}, failure="", warnings=(), num_runs=23,
        wall_s=12.5,
    )  # fmt: skip


def test_the_first_line_says_both(report: LargestReport) -> None:
    assert largest_line(report) == (
        "batch 10 fits 8.00 GiB of rtx-3070 unchanged, 20 under a plan: checkpoint 2 of 2 Layer"
    )
    plain = replace(report, answers=report.answers[1:])
    assert largest_line(plain) == "batch 10 fits 8.00 GiB of rtx-3070 unchanged"
    planned = replace(report, as_it_is=None, answers=report.answers[:1])
    assert largest_line(planned) == (
        "no batch fits unchanged, 20 fits 8.00 GiB of rtx-3070 under a plan: "
        "checkpoint 2 of 2 Layer"
    )
    nothing = replace(report, as_it_is=None, answers=())
    assert largest_line(nothing) == "no batch fits 8.00 GiB of rtx-3070"
    endless = replace(report, answers=(replace(report.answers[1], beyond=None),))
    assert "does not grow with it any more" in largest_line(endless)
    assert largest_line(replace(report, failure="ValueError: x")) == "failed: ValueError: x"


def test_the_report_says_what_a_sample_takes_and_why_no_more_fits(report: LargestReport) -> None:
    text = " ".join(render(largest_blocks(report), 120).split())
    for said in (
        "23 runs in 12.5 s, none on a GPU",
        "13.00 ms checkpoint 2 of 2 Layer; 21 does not: no room for 1.0 GiB",
        "10.00 ms unchanged, the fastest for each batch; 11 does not",
        "With batch 20 the allocator had to release its cache",
        "left out: flash_attention: no attention",
    ):
        assert said in text


def test_only_what_is_surely_faster_is_called_the_fastest(report: LargestReport) -> None:
    best, plain = report.answers
    sure = replace(plain, time=Timed(Interval(0.08, 0.1, 0.12), 1000))
    for step, words in (
        (Interval(0.2, 0.26, 0.3), "unchanged, the fastest for each batch"),
        (Interval(0.16, 0.202, 0.24), "unchanged, about the fastest for each batch"),
    ):
        timed = replace(best, time=Timed(step, 2000), step_s=step.s)
        text = " ".join(
            render(
                largest_blocks(replace(report, as_it_is=sure, answers=(timed, sure))), 120
            ).split()
        )
        assert words in text
        assert "10,000" in text  # tokens a second
        assert "times by the clock" in text
    assert report.as_fast == ()


def test_the_document_has_each_answer(report: LargestReport) -> None:
    document = json.loads(json.dumps(document_of(report)))
    assert document["schema"] == "ullage.largest/1"
    assert (document["largest"], document["as_it_is"], document["exit_code"]) == (20, 10, 0)
    assert document["fastest_per_unit"] == "unchanged"
    best, plain = document["answers"]
    assert (best["size"], best["beyond"], best["step_s"]) == (20, 21, 0.26)
    assert best["unit_s"] == pytest.approx(0.013)
    assert best["actions"][0]["modules"] == ["h.0", "h.1"]
    assert plain["peak_used_bytes"] == 7 * GIB


def test_nothing_that_fits_is_a_no_and_a_failure_is_none(report: LargestReport) -> None:
    assert replace(report, as_it_is=None, answers=()).exit_code == 1
    assert replace(report, as_it_is=None, answers=(), failure="x").exit_code == 3
