"""What is recommended, of what was tried."""

from __future__ import annotations

from typing import Any

import pytest

from ullage.explain.whatif.outcomes import Check, Outcome, Tried, WhatIfReport
from ullage.explain.whatif.packing import Packing
from ullage.explain.whatif.replays import Decider
from ullage.explain.whatif.settings import Family, Setting
from ullage.ground.units import GIB, MIB

EXACT = Check(GIB, GIB, 1, 1, has_same_segments=True, reasons=())
RECORDED = Setting(Family.RECORDED, "")


def outcome(reserved_bytes: int, **changes: Any) -> Outcome:
    fields = {
        "peak_requested_bytes": GIB, "peak_allocated_bytes": GIB,
        "peak_reserved_bytes": reserved_bytes, "segments": (reserved_bytes,), "num_retries": 0,
        "num_device_allocs": 1, "failed_event": None, "stopped_at": None,
        "num_failed_attempts": 0,
        "decider": Decider.RULES,
    }  # fmt: skip
    return Outcome(**{**fields, **changes})


def tried(text: str, reserved_bytes: int, *conflicts: str, **changes: Any) -> Tried:
    setting = Setting(Family.EXPANDABLE, text) if text else RECORDED
    return Tried(setting, outcome(reserved_bytes, **changes), conflicts=conflicts)


def report(*settings: Tried, **changes: Any) -> WhatIfReport:
    fields: dict[str, Any] = {
        "device": 0, "num_requests": 7, "torch": "2.15.0", "gpu": None, "total_bytes": None,
        "context_bytes": None, "is_whole": True, "check": EXACT,
        "lower_bound_bytes": GIB, "packing": Packing(GIB, "best fit"), "on_gpus": (),
        "contradictions": (), "notes": (),
    }  # fmt: skip
    return WhatIfReport(tried=settings, **{**fields, **changes})


def recommended(*settings: Tried, **changes: Any) -> str | None:
    best = report(*settings, **changes).recommended
    return None if best is None else best.setting.text


def test_the_least_is_recommended() -> None:
    assert recommended(tried("", 4 * GIB), tried("a", 3 * GIB), tried("b", 2 * GIB)) == "b"


def test_of_nearly_the_same_the_first() -> None:
    assert recommended(tried("", 4 * GIB), tried("a", 2 * GIB + MIB), tried("b", 2 * GIB)) == "a"


@pytest.mark.parametrize("gain", [0, MIB, 40 * MIB])
def test_what_is_hardly_less_is_not_worth_a_change(gain: int) -> None:
    assert recommended(tried("", GIB), tried("a", GIB - gain)) is None


def test_a_setting_that_conflicts_is_never_recommended() -> None:
    assert recommended(tried("", 4 * GIB), tried("a", GIB, "graphs"), tried("b", 3 * GIB)) == "b"
    assert recommended(tried("", 4 * GIB), tried("a", GIB, "graphs")) is None


def test_a_setting_that_torch_refuses_is_never_recommended() -> None:
    refused = Tried(Setting(Family.SEGMENT_SIZE, "a"), None, "unknown")
    assert recommended(tried("", 4 * GIB), refused) is None


def test_a_setting_that_runs_out_is_never_recommended() -> None:
    fails = tried("a", GIB, failed_event=3)
    fails_again = tried("b", GIB, num_failed_attempts=1)
    assert recommended(tried("", 4 * GIB), fails, fails_again) is None


def test_where_the_recorded_one_runs_out_any_that_does_not_is_worth_it() -> None:
    assert recommended(tried("", GIB, failed_event=3), tried("a", 4 * GIB)) == "a"


def test_a_file_that_contradicts_itself_recommends_nothing() -> None:
    contradictions = ("event 3: a block is freed that is not there",)
    assert recommended(tried("", 4 * GIB), tried("a", GIB), contradictions=contradictions) is None


def test_a_gpu_with_less_than_is_live_at_once_is_too_small() -> None:
    small = {"gpu": "t4", "total_bytes": GIB, "context_bytes": MIB}
    assert report(tried("", GIB), **small).is_too_small
    assert not report(tried("", GIB), **{**small, "total_bytes": 2 * GIB}).is_too_small
    assert not report(tried("", GIB)).is_too_small
