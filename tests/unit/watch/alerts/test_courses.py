"""The recorded courses (tests/golden/courses): each alert once, in time, cleared, and no other.

Programs on the phantom made them; benchmarks/watch/courses.py says what in them is scripted. Times
are in seconds from the first sample. A fault begins when the program's text says; the delay that is
allowed after it is the rule's own (`for`, its window, the steps that it needs) and two samples.
"""

from __future__ import annotations

import lzma
from functools import cache
from pathlib import Path

import pytest

from ullage.operate.watch.alerts.engine import Engine
from ullage.operate.watch.alerts.event import Event
from ullage.operate.watch.alerts.rules_file import DEFAULTS
from ullage.operate.watch.sample import Sample
from ullage.operate.watch.sample_json import sample_from_line

DIRECTORY = Path(__file__).parents[3] / "golden" / "courses"
MAX_BYTES = 40_000
OPEN = 10**9

# Of each alert: its rule, when it is to be raised, and when to be cleared (earliest and latest).
EXPECTED = {
    # A block of 8 MiB a step from 200 s to 600 s.
    "leak": {"growth": ((200 + 60, 200 + 36 * 2 + 60 + 68), (600 + 60, 600 + 60 + 68))},
    # One step that ends at 202 s.
    "spike": {"allocated": ((200, 208), (260, 276))},
    # From 130 s to 370 s.
    "fragmentation": {"fragmentation": ((130 + 60, 140 + 68), (370 + 60, 370 + 68))},
    # From 160 s to 360 s; 8 steps of 2 s, of which 5 have to differ.
    "straggler": {"straggler-memory": ((160 + 30, 160 + 30 + 32), (360 + 60, 360 + 60 + 32))},
    # From 160 s to 361 s; 8 steps, of which 5 have to differ: 3 s each, then 2 s.
    "slow-rank": {
        "straggler-time": ((160 + 12 + 30, 160 + 30 + 40), (361 + 60, 361 + 60 + 32)),
    },
    # From 120 s to 3720 s; the load counts as none after 90 s. What is usual takes 20 samples of
    # 20 s to learn; then 5 minutes.
    "idle-holder": {
"utilisation": ((400 + 300, 400 + 60 + 300 + 40), (3720 + 60, 3720 + 60 + 100)),
        "idle-holder": ((210 + 1800, 210 + 1800 + 40), (3720, 3720 + 40)),
    },
    # Batches of all sizes from 120 s; the counters rise for the last time at 184 s: the segments
    # that are left then serve them all.
    "storm": {"reserved": ((124, 136), (184 + 120 + 30, 184 + 120 + 30 + 8))},
    # 36 MiB a step from 120 s to 560 s; ten minutes before the limit is at about 245 s.
    "forecast": {
        "growth": ((120 + 60, 120 + 36 * 2 + 60 + 68), (560 + 60, 560 + 68)),
        "forecast": ((180, 320), (560 + 60, 560 + 68)),
    },
    # At 120 s.
    "out-of-memory": {
        "allocated": ((120, 128), (180, 192)),
        "out-of-memory": ((120, 128), (420, 428)),
    },
    # From 120 s until the end of the process at 240 s.
    "killed": {"allocated": ((120, 128), (238, 250))},
    "unpublished": {"unpublished": ((120 + 60, 120 + 68), (238 + 60, 250 + 60))},
    # From 250 s to 440 s; 40 steps of 2 s have to be seen.
    "scaler-skips": {"scaler-skips": ((240 + 32, 240 + 100), (440 + 60, 440 + 260))},
    # From 200 s to 400 s another job leaves it no more than it has.
    "two-jobs": {"allocated": ((200, 212), (400 + 60, 400 + 68))},
    # From 200 s to 400 s.
    "heat": {
        "temperature": ((200 + 30, 200 + 38), (400 + 60, 400 + 68)),
        "throttling": ((200 + 24, 200 + 40), (400 + 60, 400 + 60 + 68)),
    },
    # One uncorrected error at 200 s, and corrected ones, one a second until 500 s.
    "ecc": {
        "ecc-uncorrected": ((200, 216), (800, 816)),
        "ecc-corrected": ((300, 316), (1000, 1110)),
    },
    # From 240 s to 420 s.
    "lost": {"gpu-lost": ((240, 248), (420, 428))},
    # Little power from 400 s to 520 s, too much from 700 s to 800 s.
    "power": {
        "power": ((400 + 60, 400 + 60 + 60), (520 + 60, 520 + 60 + 68)),
        "power-limit": ((700 + 30, 700 + 30 + 40), (800 + 60, 800 + 60 + 40)),
    },
    # From 400 s to 1000 s.
    "load-falls": {"utilisation": ((400 + 300, 400 + 300 + 68), (1000 + 60, 1000 + 60 + 68))},
    "healthy-day": {},
    "healthy-full-cache": {},
    "healthy-plateau": {},
    "healthy-variable": {},
    "healthy-validation": {},
}  # fmt: skip


@cache
def samples(name: str) -> tuple[Sample, ...]:
    content = lzma.decompress((DIRECTORY / f"{name}.jsonl.xz").read_bytes())
    return tuple(map(sample_from_line, content.splitlines()))


def test_every_course_is_expected() -> None:
    names = {path.name.removesuffix(".jsonl.xz") for path in DIRECTORY.glob("*.jsonl.xz")}
    assert names == EXPECTED.keys()
    assert len(names) >= 16
    assert all(path.stat().st_size < MAX_BYTES for path in DIRECTORY.iterdir())


@pytest.mark.parametrize("name", EXPECTED)
def test_each_alert_comes_once_in_time_and_is_cleared(name: str) -> None:
    course, engine = samples(name), Engine(DEFAULTS)
    events: dict[str, list[Event]] = {}
    for sample in course:
        for event in engine.take(sample):
            events.setdefault(event.rule.name, []).append(event)
    start_s = course[0].time_s
    assert events.keys() == EXPECTED[name].keys()
    assert engine.raised == ()
    for rule, spans in EXPECTED[name].items():
        assert [event.change.value for event in events[rule]] == ["raised", "cleared"]
        for event, (earliest, latest) in zip(events[rule], spans, strict=True):
            assert earliest <= event.time_s - start_s <= latest, event.line()


def test_who_is_killed_is_said_to_have_ended() -> None:
    engine = Engine(DEFAULTS)
    events = [event for sample in samples("killed") for event in engine.take(sample)]
    assert events[-1].text == "its process ended"


def test_the_odd_rank_is_named() -> None:
    engine = Engine(DEFAULTS)
    events = [event for sample in samples("straggler") for event in engine.take(sample)]
    assert {event.subject.rank for event in events} == {2}


def test_the_healthy_full_cache_is_full() -> None:
    devices = [job.devices[0] for sample in samples("healthy-full-cache") for job in sample.jobs]
    assert max(device.reserved_bytes / device.total_bytes for device in devices) > 0.85
    used = [gpu.used_bytes / gpu.total_bytes for gpu in samples("healthy-full-cache")[50].devices]  # type: ignore[operator]
    assert min(used) > 0.9
