"""Published starts of vLLM, each as one command (benchmarks/serving/starts.toml)."""

from __future__ import annotations

from statistics import median

import pytest
from benchmarks.results import published, read_rows
from benchmarks.serving.starts import Outcome, outcomes, summary


@pytest.fixture(scope="module", name="held")
def ask_for_each() -> list[Outcome]:
    return outcomes()


def test_the_cache_of_published_starts_is_within_three_percent_and_inside(
    held: list[Outcome],
) -> None:
    errors = [abs(one.error) for one in held]
    assert len(held) == 11
    assert median(errors) <= 0.03 and max(errors) <= 0.1
    assert [one.start["name"] for one in held if not one.is_inside] == []


def test_their_intervals_are_at_most_half_as_wide_as_they_were(held: list[Outcome]) -> None:
    assert [one.start["name"] for one in held if 2 * one.width_gib > one.start["width_gib"]] == []


def test_no_verdict_denies_a_start_that_there_was(held: list[Outcome]) -> None:
    assert {one.verdict for one in held} <= {"fits", "may_fit"}


def test_starts_that_were_not_held_against_are_inside_too() -> None:
    others = outcomes(is_other=True)
    assert [one.start["name"] for one in others if not one.is_inside] == []
    assert median(abs(one.error) for one in others) <= 0.03


def test_the_page_says_what_the_commands_say_now(held: list[Outcome]) -> None:
    section, _ = published("serving-starts")
    assert summary(held) in section.replace("\n", " ")
    said = {(row["Start"], row["ours"], row["interval"]) for row in read_rows("serving-starts")}
    for one in held:
        cells = [cell.strip() for cell in one.row().split("|")]
        assert (cells[1], cells[3], cells[5]) in said
