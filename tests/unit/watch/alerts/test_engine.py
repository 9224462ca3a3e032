"""Raised once, cleared once: hysteresis, unknown values, gaps, clocks, what vanishes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ullage.operate.watch.alerts.engine import Engine, watch_rules
from ullage.operate.watch.alerts.rules_file import DEFAULTS
from ullage.operate.watch.sample import Note

RULE = next(rule for rule in DEFAULTS if rule.name == "temperature")


def heat(scene: Any, degrees: list[int | None]) -> list[Any]:
    """A sample a second; the GPU slows down at 87, the rule is of 82 and of 77 degrees."""
    return [
        scene.sample(1000 + at, scene.gpu(temperature_c=value)) for at, value in enumerate(degrees)
    ]


def test_an_incident_is_raised_once_and_cleared_once(scene: Any) -> None:
    degrees = [60] * 10 + [85] * 100 + [60] * 100
    assert scene.changes(heat(scene, degrees), "temperature") == [
        (40, "raised", "temperature"),
        (170, "cleared", "temperature"),
    ]


def test_a_short_rise_is_none(scene: Any) -> None:
    assert scene.changes(heat(scene, [85] * 29 + [60] + [85] * 29 + [60] * 9), "temperature") == []


def test_between_both_thresholds_nothing_changes(scene: Any) -> None:
    degrees = [85] * 40 + [80] * 200 + [85] * 20 + [80] * 200
    assert scene.changes(heat(scene, degrees), "temperature") == [(30, "raised", "temperature")]


def test_a_short_calm_clears_nothing(scene: Any) -> None:
    degrees = [85] * 40 + ([70] * 59 + [85]) * 3
    assert scene.changes(heat(scene, degrees), "temperature") == [(30, "raised", "temperature")]


def test_what_is_not_known_neither_raises_nor_clears(scene: Any) -> None:
    assert scene.changes(heat(scene, [None] * 300), "temperature") == []
    degrees = [85] * 40 + [None] * 300
    assert scene.changes(heat(scene, degrees), "temperature") == [(30, "raised", "temperature")]


def test_a_long_unknown_time_does_not_count_as_beyond(scene: Any) -> None:
    degrees = [85] * 10 + [None] * 300 + [85] * 10 + [60] * 5
    assert scene.changes(heat(scene, degrees), "temperature") == []


def test_a_gap_between_samples_does_not_count(scene: Any) -> None:
    first, second = heat(scene, [85] * 10), heat(scene, [85] * 10)
    late = [replace(sample, time_s=sample.time_s + 5000) for sample in second]
    assert scene.changes([*first, *late], "temperature") == []


def test_slow_samples_are_no_gap(scene: Any) -> None:
    hot = [scene.sample(1000 + 300 * at, scene.gpu(temperature_c=85)) for at in range(3)]
    assert scene.changes(hot, "temperature") == [(300, "raised", "temperature")]


def test_samples_ten_times_a_second_are_taken_once_a_second(scene: Any) -> None:
    fast = [scene.sample(1000 + at / 10, scene.gpu(temperature_c=85)) for at in range(400)]
    assert scene.changes(fast, "temperature") == [(30, "raised", "temperature")]


def test_a_clock_that_is_set_back_keeps_the_incidents(scene: Any) -> None:
    samples = heat(scene, [85] * 40)
    back = [replace(sample, time_s=sample.time_s - 900) for sample in heat(scene, [60] * 80)]
    changes = scene.changes([*samples, *back], "temperature")
    assert changes == [(30, "raised", "temperature"), (-840, "cleared", "temperature")]


def test_a_clock_that_is_corrected_changes_nothing(scene: Any) -> None:
    samples = heat(scene, [85] * 40)
    samples[20] = replace(samples[20], time_s=samples[20].time_s - 2)
    assert scene.changes(samples, "temperature") == [(30, "raised", "temperature")]


def test_two_gpus_are_two_incidents(scene: Any) -> None:
    gpus = (scene.gpu(temperature_c=85), scene.gpu(temperature_c=86, uuid="GPU-1", index=1))
    events = scene.events([scene.sample(1000 + at, *gpus) for at in range(40)], "temperature")
    assert [event.subject.gpu_index for _, _, event in events] == [0, 1]
    assert len({event.incident for _, _, event in events}) == 2


def test_a_gpu_without_uuid_is_told_by_its_number(scene: Any) -> None:
    gpus = (scene.gpu(temperature_c=85, uuid=None), scene.gpu(uuid=None, index=1))
    events = scene.events([scene.sample(1000 + at, *gpus) for at in range(40)], "temperature")
    assert [event.subject.gpu for _, _, event in events] == ["gpu-0"]


def test_a_gpu_that_is_listed_no_more(scene: Any) -> None:
    other = scene.gpu(uuid="GPU-1", index=1)
    samples = heat(scene, [85] * 40)
    samples += [scene.sample(1040 + at, other) for at in range(5)]
    events = scene.events(samples, "temperature")
    assert [(at, change) for at, change, _ in events] == [(30, "raised"), (41, "cleared")]
    assert "lists this GPU no more" in events[1][2].text


def busy(scene: Any) -> Any:
    return scene.gpu(used=79 * 2**30 + 2**29)


def full(scene: Any, **fields: Any) -> Any:
    return scene.job(device={"allocated_bytes": 79 * 2**30, "reserved_bytes": 79 * 2**30}, **fields)


def test_a_process_that_has_ended_clears_its_incidents(scene: Any) -> None:
    samples = [scene.sample(1000 + at, busy(scene), jobs=[full(scene)]) for at in range(10)]
    gone = scene.gpu(processes=())
    samples += [scene.sample(1010 + at, gone) for at in range(10)]
    events = scene.events(samples, "allocated")
    assert [(at, change) for at, change, _ in events] == [(0, "raised"), (11, "cleared")]
    assert events[1][2].text == "its process ended"
    assert events[1][2].value is None


def test_one_sample_without_a_job_clears_nothing(scene: Any) -> None:
    samples = [
        scene.sample(1000 + at, busy(scene), jobs=[] if at == 5 else [full(scene)])
        for at in range(10)
    ]
    assert scene.changes(samples, "allocated") == [(0, "raised", "allocated")]


def test_a_job_that_stops_publishing_is_told_from_one_that_ended(scene: Any) -> None:
    samples = [scene.sample(1000 + at, busy(scene), jobs=[full(scene)]) for at in range(10)]
    samples += [scene.sample(1010 + at) for at in range(5)]
    events = scene.events(samples, "allocated")
    assert events[1][2].text == "its process publishes nothing any more"


def test_jobs_that_cannot_be_read_are_not_over(scene: Any) -> None:
    samples = [scene.sample(1000 + at, busy(scene), jobs=[full(scene)]) for at in range(10)]
    note = Note("jobs", "permission denied")
    samples += [scene.sample(1010 + at, notes=(note,)) for at in range(90)]
    assert scene.changes(samples, "allocated") == [(0, "raised", "allocated")]


def test_a_number_that_is_used_again_is_another_job(scene: Any) -> None:
    samples = [scene.sample(1000 + at, busy(scene), jobs=[full(scene)]) for at in range(5)]
    samples += [
        scene.sample(1005 + at, busy(scene), jobs=[full(scene, started_s=9.0)]) for at in range(5)
    ]
    assert [change for _, change, _ in scene.changes(samples, "allocated")] == [
        "raised", "raised", "cleared",
    ]  # fmt: skip


def test_an_incident_that_comes_again_is_another(scene: Any) -> None:
    degrees = [85] * 40 + [60] * 100 + [85] * 40
    events = scene.events(heat(scene, degrees), "temperature")
    assert [change for _, change, _ in events] == ["raised", "cleared", "raised"]
    incidents = [event.incident for _, _, event in events]
    assert incidents[0] == incidents[1] != incidents[2]


def test_nothing_is_kept_of_what_is_gone(scene: Any) -> None:
    engine = Engine(DEFAULTS)
    for at in range(200):
        job = full(scene, pid=1000 + at, scaler_skips=0)
        gpu = scene.gpu(processes=(scene.process(1000 + at),))
        engine.take(scene.sample(1000 + at, gpu, jobs=[job]))
    subjects = {subject for _, subject in engine._tracks}
    assert len(subjects) < 12
    assert all(len(meter.memory) < 12 for _, meter in engine._meters)


def test_the_engine_is_a_function_of_the_samples(scene: Any) -> None:
    samples = heat(scene, [85] * 40 + [60] * 100)
    assert list(watch_rules(iter(samples), [RULE])) == list(watch_rules(samples, [RULE]))


UNKNOWN = (
    "total_bytes", "used_bytes", "free_bytes", "gpu_frac", "temperature_c", "slowdown_c", "power_w",
    "power_limit_w", "throttle_reasons", "ecc_corrected", "ecc_uncorrected", "processes",
)  # fmt: skip


def test_a_machine_of_which_nothing_is_known(scene: Any) -> None:
    empty = scene.gpu(**dict.fromkeys(UNKNOWN))
    assert scene.changes([scene.sample(1000 + at, empty) for at in range(900)]) == []


@pytest.mark.parametrize("text", ["raised warning temperature: GPU 0: 85 °C", "alert above -5 °C"])
def test_a_line_says_what_where_and_against_what(scene: Any, text: str) -> None:
    (event,) = [event for _, _, event in scene.events(heat(scene, [85] * 40), "temperature")]
    assert text in event.line()
    assert event.document["event"] == "raised"
    assert event.document["value"] == -2
