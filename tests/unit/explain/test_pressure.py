"""Pressure beside times, on records that are built: rows, percentiles and the sentence."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.unit.explain.test_recorded import record_fields

from ullage import SpecError, read_recording
from ullage.explain.pressure import explain_pressure
from ullage.ground.errors import SnapshotError
from ullage.log.durations import RELATIVE_ERROR
from ullage.log.pressure import MeasuredPressure, parse_pressure
from ullage.log.reader import parse_record
from ullage.players.inside.pressure.request_log import Request, RequestLog
from ullage.players.inside.pressure.step_windows import Level, StepWindows

GIB = 1 << 30
NO_REQUESTS: dict[str, Any] = {
    "num_requests": 0, "request_times": [], "last_requests": [], "token_growth": [],
}  # fmt: skip


def pressure_fields(steps: str, *, has_frees: bool = True) -> dict[str, Any]:
    """Steps by letters: "." takes 0.1 s, "r" has a retry with two cudaFrees and takes 0.3 s, "f"
    has a cudaFree alone and takes 0.2 s; each ends with a quarter of its 8 GiB in holes.
    """
    windows, now_s = StepWindows(), 0.0
    for letter in steps:
        seconds = {".": 0.1, "r": 0.3, "f": 0.2}[letter]
        retries, frees = int(letter == "r"), {".": 0, "r": 2, "f": 1}[letter]
        windows.add(now_s, seconds, Level(6 * GIB, 8 * GIB, 2 * GIB, retries, frees))
        now_s += seconds
    return {
        "step_times": windows.time_rows(), "windows": windows.window_rows(),
        "window_times": windows.window_time_rows(), "num_recent": 1000,
        "has_device_frees": has_frees, **NO_REQUESTS,
    }  # fmt: skip


def parse(fields: dict[str, Any]) -> MeasuredPressure:
    pressure = parse_pressure(fields)
    assert pressure is not None
    return pressure


THAN = "the median of the others"


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        ("", "no step has ended"),
        ("." * 10, "no step had a retry or a cudaFree"),
        ("r" * 3, "all 3 steps had a retry: there are no others to compare with"),
        ("..r...rrr...r...", f"5 of 16 steps had a retry: their median is 3 times {THAN}"),
        (
            "......f..ffff...",
            f"no step had a retry; 5 of 16 steps had a cudaFree: their median is 2 times {THAN}",
        ),
        (
            "..r...",
            f"1 of 6 steps had a retry: its time is 3 times {THAN}; so few steps say little",
        ),
    ],
)
def test_steps_under_pressure_are_compared_with_the_others(steps: str, sentence: str) -> None:
    assert explain_pressure(parse(pressure_fields(steps))).sentence == sentence


def test_a_torch_that_does_not_count_says_so() -> None:
    report = explain_pressure(parse(pressure_fields("." * 10, has_frees=False)))
    assert report.sentence == "no step had a retry; this torch does not count cudaFrees"
    assert report.num_device_frees is None
    assert {row.num_device_frees for row in report.rows} == {None}


def test_rows_have_all_steps_and_their_percentiles() -> None:
    steps = ("." * 90 + "r" * 10) * 30
    report = explain_pressure(parse(pressure_fields(steps)))
    assert 10 <= len(report.rows) <= 20
    assert sum(row.num_steps for row in report.rows) == len(steps)
    assert report.num_alloc_retries == steps.count("r")
    assert report.num_device_frees == 2 * steps.count("r")
    end = 0
    for row in report.rows:
        part = steps[row.first : row.first + row.num_steps]
        assert row.first == end
        assert row.num_alloc_retries == part.count("r")
        assert row.num_device_frees == 2 * part.count("r")
        assert row.p50_s == pytest.approx(0.1, rel=RELATIVE_ERROR)
        assert row.p99_s == pytest.approx(0.3, rel=RELATIVE_ERROR)
        assert row.fragmented_frac == 0.25
        end += row.num_steps
    assert report.steps is not None and report.recent_steps is not None
    assert (report.steps.num, report.recent_steps.num) == (3000, 1000)
    assert report.steps.p90_s == pytest.approx(0.1, rel=RELATIVE_ERROR)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A file with steps, requests and a generation."""
    log = RequestLog()
    for number in range(4):
        request = Request("chat", 4)
        log.begin(request, number, 0)
        for call in range(4):
            request.note_call(GIB + call * (1 << 20))
        log.end(request, number + 0.5, GIB, has_failed=False)
    fields = record_fields(None, 6 * GIB)
    fields["measured"]["pressure"] = pressure_fields("..r.....rrrr" * 20) | {
        "num_requests": log.num_requests, "request_times": log.time_rows(),
        "last_requests": log.rows(), "token_growth": log.growth_rows(),
    }  # fmt: skip
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [], "ullage": fields}))
    return path


def test_the_reports_and_the_document_say_the_same(recording: Path) -> None:
    result = read_recording(recording)
    brief, full = (" ".join(result.text(full=is_full).split()) for is_full in (False, True))
    sentence = "100 of 240 steps had a retry: their median is 3 times the median of the others"
    (process,) = result.document["processes"]
    document = process["pressure"]
    assert document["comparison"] == sentence
    assert f"Pressure: {sentence}" in brief and f"the allocator {sentence}" in full
    assert "Steps: 240, p50" in brief and "Requests, chat: 4, p50" in brief
    assert "Generation: 1.0 MiB a call of the model: 1.0 GiB after the first" in brief
    assert document["num_alloc_retries"] == 100
    assert sum(window["num_steps"] for window in document["windows"]) == 240
    assert document["windows"][0]["fragmented_frac"] == 0.25
    (requests,) = document["requests"]
    assert requests["latency_s"]["num"] == 4
    assert requests["latency_s"]["p99"] == pytest.approx(0.5, rel=RELATIVE_ERROR)
    assert document["tokens"]["bytes_per_call"] == 1 << 20
    assert [row["num_tokens"] for row in document["last_requests"]] == [4] * 4


def names_in(value: Any) -> set[str]:
    """The names of all fields of a document."""
    if isinstance(value, dict):
        return set(value).union(*map(names_in, value.values()))
    return set().union(*map(names_in, value)) if isinstance(value, list) else set()


def test_the_page_of_the_run_document_names_every_field(recording: Path) -> None:
    (process,) = read_recording(recording).document["processes"]
    page = (Path(__file__).parents[3] / "docs" / "reference" / "run-document.md").read_text()
    part = page.partition("## `processes[].pressure`")[2].partition("\n## ")[0]
    assert [name for name in names_in(process["pressure"]) if f"`{name}`" not in part] == []


def test_a_table_fits_into_eighty_columns(recording: Path) -> None:
    lines = read_recording(recording).text(full=True).splitlines()
    (head,) = [number for number, line in enumerate(lines) if "split" in line and "frees" in line
               and "step" in line and "at" in line.split()]  # fmt: skip
    assert all(len(line) <= 80 for line in lines)
    assert len(lines[head + 1].split()) == 15, "one line for a row"


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_plot_is_drawn(recording: Path, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = read_recording(recording).plot(tmp_path / f"pressure{suffix}")
    picture = path.read_bytes()
    assert picture.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    with pytest.raises(SpecError, match="exists"):
        read_recording(recording).plot(path)


def test_a_file_of_an_earlier_version_opens_and_has_nothing_to_draw(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    fields = record_fields(None, GIB)
    path = tmp_path / "old.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [], "ullage": fields}))
    result = read_recording(path)
    assert "pressure" not in result.document["processes"][0]
    assert "Pressure" not in result.text(full=True)
    with pytest.raises(SpecError, match="nothing to draw"):
        result.plot(tmp_path / "pressure.svg")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("step_times", [[10_000, 1, 1, 0, 0]], "bin 10000"),
        ("step_times", [[1, -1, 1, 0, 0]], "expected a number from 0"),
        ("window_times", [[64, 1, 1]], "the window 64"),
        ("windows", [[0, 1]], "not 9 values"),
        ("windows", [[0, 1, float("nan"), 0.0, 0, 0, 0, 0, 0]], "expected seconds"),
        ("last_requests", [["chat", 0.0, 0.0, None, 0, 0, 0, None, None, None, 0, False]],
         r"last_requests\[0\].begin_bytes is None; expected a whole number"),
        ("request_times", "text", "expected a list"),
        ("token_growth", [["a", 1]], "'a'; expected a whole number"),
    ],
)  # fmt: skip
def test_a_damaged_field_is_refused(field: str, value: object, words: str) -> None:
    fields = record_fields(None, GIB)
    fields["measured"]["pressure"] = pressure_fields(".") | {field: value}
    with pytest.raises(SnapshotError, match=words):
        parse_record(fields)


def test_the_odd_counts_of_a_hostile_file_are_numbers() -> None:
    fields = pressure_fields("..r")
    fields["step_times"] = [[5, 0, 0, 9, 0]]
    report = explain_pressure(parse(fields))
    assert report.steps is None
    assert Counter(row.num_alloc_retries for row in report.rows) == Counter([0, 0, 1])
