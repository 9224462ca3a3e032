"""What benchmarks/rivals says of answers, and of what was not asked."""

from __future__ import annotations

from benchmarks.rivals.__main__ import Answer, of_ullage, recorded_peaks, render, summarise

GIB = 2**30


def answers(*answered: int | None) -> list[Answer]:
    return [Answer("tool", f"w{n}", 4 * GIB, one, "no") for n, one in enumerate(answered)]


def test_errors_are_shares_of_what_was_recorded_and_both_ways_count() -> None:
    assert [one.error for one in answers(5 * GIB, 3 * GIB, None)] == [0.25, -0.25, None]
    row = summarise("tool", answers(5 * GIB, 2 * GIB, 4 * GIB, None), "bytes", "allocated")
    assert row == ["tool", "bytes", "allocated", "3 of 4", "25.0%", "50.0%"]


def test_a_tool_without_an_answer_has_no_error() -> None:
    row = summarise("tool", answers(None, None), "bytes", "allocated")
    assert row == ["tool", "bytes", "allocated", "0 of 2", "", ""]


def test_every_recorded_training_is_asked_about() -> None:
    peaks = recorded_peaks()
    assert {one.subject for one in of_ullage(peaks)} == peaks.keys()
    assert "hf_llama_generate" not in peaks
    assert all(peak["allocated"] <= peak["reserved"] for peak in peaks.values())


def test_what_is_left_out_is_said_in_bold() -> None:
    groups = {"ullage run, reserved": answers(4 * GIB)}
    page = render(groups, "torch 2.11.0", ["FakeGPU (`--fakegpu DIR`)"], "2.11.0")
    assert "**Left out: FakeGPU (`--fakegpu DIR`).**" in page
    assert "Left out" not in render(groups, "torch 2.11.0", [], "2.11.0")


def test_no_row_of_the_page_is_without_a_figure_or_a_reason() -> None:
    groups = {"ullage run, reserved": answers(4 * GIB), "accelerate": answers(None, 3 * GIB)}
    page = render(groups, "torch 2.11.0", [], "2.11.0")
    rows = [line.split(" | ") for line in page.partition("why none |\n")[2].splitlines()[1:]]
    assert [(row[4], row[5].strip(" |")) for row in rows] == [
        ("+0.0%", "no"), ("", "no"), ("-25.0%", "no")
    ]  # fmt: skip
