"""The time of a step in the report, in the document, on the timeline, and in a sweep."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ullage.answers.text import render
from ullage.clock.price import find_expense
from ullage.clock.step_time import Interval, StepTime, merge_numbered
from ullage.explain.compare.sweep import SweepReport
from ullage.explain.moments.step_levels import step_levels
from ullage.explain.program import Program
from ullage.explain.run import RunReport, explain_run
from ullage.facts.gpus.catalog import Gpu
from ullage.ground.errors import SnapshotError, SpecError
from ullage.ground.protocol.plain import plain
from ullage.log.model import Record
from ullage.verbs.document.trace_events import render_timeline
from ullage.verbs.run.function import check_price
from ullage.verbs.run.sweep_text import sweep_blocks
from ullage.verbs.run.text import run_blocks
from ullage.verbs.text.time.numbers import (
    format_dollars,
    format_interval,
    format_rate,
    format_seconds,
    format_share,
)

HERE = Path(__file__).parent
TRAINING = (
    "+200 =parameter +3 F +300 +50 -50 f B +100 =gradient +40 w -40 -300 b O +150 =optimizer_state "
    "o S"
)
MakeTime = Callable[..., StepTime]
Make = Callable[..., Record]


@pytest.fixture
def report(make_record: Make, program: Program, small_gpu: Gpu, step_time: MakeTime) -> RunReport:
    """A run with a step of 0.412 s and a price."""
    explained = explain_run(
        [(make_record(TRAINING), "ullage-train.pickle")],
        program=program, torch="2.15.0+cu132", gpu=small_gpu, is_unlimited=False,
    )  # fmt: skip
    return with_times(replace(explained, price=2.5), step_time())


def with_times(report: RunReport, *times: StepTime | None) -> RunReport:
    """A report whose processes took so long; each a copy of the first."""
    first = report.processes[0]
    return replace(report, processes=tuple(replace(first, time=time) for time in times))


@pytest.mark.parametrize("name", ["brief", "full"])
def test_the_text_is_as_it_was_looked_at(report: RunReport, name: str) -> None:
    text = render(run_blocks(report), full=name == "full")
    assert max(map(len, text.splitlines())) <= 80
    assert text == (HERE / f"time.{name}.txt").read_text(encoding="utf-8")


def test_time_takes_at_most_twelve_lines_of_the_short_report(report: RunReport) -> None:
    untimed = with_times(report, None)
    more = len(render(run_blocks(report)).splitlines()) - len(
        render(run_blocks(untimed)).splitlines()
    )
    assert 0 < more <= 12


def test_what_is_shown_comes_to_the_whole_step(step_time: MakeTime) -> None:
    time = step_time()
    exposed_s = sum(kind.exposed.s for kind in time.categories)
    assert exposed_s + time.device_idle.s == pytest.approx(time.step.s)


def test_the_document_has_the_time(report: RunReport) -> None:
    document = plain(report)["time"]
    assert json.loads(json.dumps(document)) == document
    assert document["step_s"] == pytest.approx([0.92 * 0.412, 0.412, 1.14 * 0.412])
    assert len(document["steps_s"]) == 2
    assert document["critical"] == "matrix products"
    low, likely, high = document["tokens_per_s"]
    assert likely == pytest.approx(16384 / 0.412)
    assert low < likely < high
    assert document["utilisation"][1] == pytest.approx(1.67e14 / 9.89e14 / 0.412)
    assert [kind["name"] for kind in document["kinds"]][:2] == [
        "matrix products", "memory-bound kernels",
    ]  # fmt: skip
    assert document["price"]["million_tokens_dollars"][1] == pytest.approx(
        2.5 / 3600 * 0.412 * 1e6 / 16384
    )


def test_without_time_the_section_is_null(report: RunReport) -> None:
    untimed = with_times(report, None)
    assert plain(untimed)["time"] is None
    assert "Time of a step" not in render(run_blocks(untimed), full=True)
    with pytest.raises(SnapshotError, match="no step was timed"):
        render_timeline(untimed)


def test_what_is_not_known_is_not_shown(report: RunReport, step_time: MakeTime) -> None:
    time = replace(step_time(), flops=0.0, num_tokens=0, num_samples=0)
    unknown = with_times(replace(report, price=None), time)
    document = plain(unknown)["time"]
    for name in ("utilisation", "tokens_per_s", "samples_per_s", "tokens_per_step", "price"):
        assert document[name] is None
    text = render(run_blocks(unknown))
    assert "tokens/s" not in text and "MFU" not in text and "$" not in text


def test_the_slowest_process_is_the_one_that_is_shown(
    report: RunReport, step_time: MakeTime
) -> None:
    ranks = with_times(report, step_time(), step_time(2.0), None, step_time(1.5))
    assert ranks.time is not None
    assert ranks.time.step.s == pytest.approx(0.824)


def test_an_idle_device_hangs_on_the_host(step_time: MakeTime) -> None:
    time = replace(step_time(), device_idle=Interval(0.2, 0.27, 0.3))
    assert time.critical == "the host"


def test_a_step_costs_the_price_of_its_gpu_hours(step_time: MakeTime) -> None:
    cost = find_expense(step_time(), gpu_hour=3.6, num_gpus=8)
    assert cost.thousand_steps.likely == pytest.approx(8 * 0.412)
    assert cost.million_tokens is not None
    # 1e6 tokens are 1e6 / 16384 steps of one GPU, which has tokens of its own.
    assert cost.million_tokens.likely == pytest.approx(0.412 / 1000 * 1e6 / 16384)
    assert cost.thousand_steps.low < cost.thousand_steps.likely < cost.thousand_steps.high


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(75.04, "75.0 s"), (1.234, "1.23 s"), (0.4123, "0.412 s"), (0.0231, "23.1 ms"),
     (8.5e-4, "0.850 ms"), (8.5e-6, "8.50 us"), (0.0, "0 us"), (1234.5, "1,234 s")],
)  # fmt: skip
def test_seconds_have_three_digits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_numbers_for_people() -> None:
    assert format_interval((0.38, 0.4123, 0.47)) == "0.412 s (0.380 to 0.470)"
    assert format_interval((0.4123, 0.4123, 0.4123)) == "0.412 s"
    assert [format_share(part, 1.0) for part in (0.414, 0.001, 0.0)] == ["41 %", "<1 %", "0 %"]
    assert [format_rate(rate) for rate in (39_723.4, 3.254, 0.0)] == ["39,700", "3.25", "0"]
    assert format_dollars((0.162, 0.1746, 0.199)) == "$0.175 (0.162 to 0.199)"
    assert format_dollars((1.0, 1.0, 1.0)) == "$1.00"


def test_levels_stand_where_the_work_after_them_begins(report: RunReport) -> None:
    process = report.processes[0]
    assert process.time is not None
    levels = step_levels(process.record, process.time)
    # Before each piece of work the level after as many events as came before it.
    assert levels.start_s.tolist() == [0.02, 0.05, 0.13, 0.34]
    assert levels.allocated_bytes.tolist() == [203, 503, 503, 303]


def test_work_that_follows_is_not_nested_in_what_ends_then(
    report: RunReport, step_time: MakeTime
) -> None:
    time, work = step_time(), 1.0006e-6  # both ends would be rounded up
    first = time.spans[0]._replace(start_s=work, duration_s=work, stream=0)
    spans = (first, first._replace(start_s=2 * work))
    document = json.loads(render_timeline(with_times(report, replace(time, spans=spans))))
    before, after = [each for each in document["traceEvents"] if each["ph"] == "X"]
    assert before["ts"] + before["dur"] == pytest.approx(after["ts"], abs=1e-6)


def test_the_timeline_is_in_the_trace_event_format(report: RunReport) -> None:
    document = json.loads(render_timeline(report))
    events = document["traceEvents"]
    assert Counter(event["ph"] for event in events) == {"M": 4, "X": 5, "C": 8}
    spans = [event for event in events if event["ph"] == "X"]
    assert [(span["ts"], span["dur"], span["tid"]) for span in spans[:2]] == [
        (0.0, 10_000.0, 0), (20_000.0, 100_000.0, 1),
    ]  # fmt: skip
    assert spans[1]["cat"] == "matrix products"
    assert spans[1]["args"] == {"part": "forward", "module": "blocks.0", "allocator events": 2}
    names = {
        event["tid"]: event["args"]["name"]
        for event in events
        if "tid" in event and event["ph"] == "M"
    }
    assert names == {0: "host waits", 1: "stream 0", 2: "stream 1"}
    counters = [event for event in events if event["ph"] == "C"]
    assert {counter["name"] for counter in counters} == {"live", "reserved"}
    assert all(counter["args"].keys() == {"bytes"} for counter in counters)


def test_a_sweep_has_a_column_of_time_and_one_of_cost(
    sweep_of: Callable[..., SweepReport], step_time: MakeTime
) -> None:
    report = sweep_of({"batch": ["1", "2", "4"]}, lambda batch: int(100 + 99 * batch))
    points = [
        replace(point, report=replace(with_times(point.report, step_time(scale)), price=2.5))
        for scale, point in zip((0.1, 1.0, 3.0), report.points, strict=True)
    ]
    text = render(sweep_blocks(replace(report, points=tuple(points))))
    assert max(map(len, text.splitlines())) <= 80
    assert text == (HERE / "sweep-time.txt").read_text(encoding="utf-8")
    alike = [
        replace(point, report=with_times(point.report, step_time(scale)))
        for scale, point in zip((0.99, 1.0, 3.0), report.points, strict=True)
    ]
    text = render(sweep_blocks(replace(report, points=tuple(alike))))
    assert "batch=1, 40,200 tokens/s; about as fast: batch=2\n" in text


def test_equal_layers_are_merged(step_time: MakeTime) -> None:
    layers, rest = merge_numbered(step_time().modules)
    assert (layers.name, layers.num, rest.name) == ("blocks.*", 1000, "")
    assert layers.exposed == pytest.approx((0.92 * 0.19, 0.19, 1.14 * 0.19))


def test_a_price_is_dollars() -> None:
    for price in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(SpecError, match="is not a price"):
            check_price(price)
    check_price(2.5)
    check_price(None)
