"""Why memory ran out: the arithmetic of each cause, by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ullage.explain.oom import Cause
from ullage.explain.rules.registry import find_findings
from ullage.explain.snapshot import SnapshotReport
from ullage.ground.units import MIB

ReportOf = Callable[..., SnapshotReport]
# The recorded device has 4096 MiB, its driver's context 96: 4000 are left for the allocator.
LEAK = "[3900 w+100 " + " ".join(f"F y{n}+500@main:6 f S" for n in range(7)) + " !400:100"

# A model on its way to the device.
MOVED = "[3900 " + " ".join(f"w{n}+240@main:12=parameter" for n in range(16)) + " !240:100"


@pytest.mark.parametrize(
    ("script", "cause", "code"),
    [
        ("[3900 w+3850 !200:100", Cause.TOO_BIG, "UL151"),
        ("[3900 a+100 w+3000 b+800 a- !150:100", Cause.FRAGMENTED, "UL152"),
        (LEAK, Cause.LEAKED, "UL153"),
        (MOVED, Cause.TOO_BIG, "UL151"),
        ("[2000 w+1900 !300:100", Cause.OTHERS, "UL154"),
        ("[1900 w+1800 !2300:2100", Cause.SPIKE, "UL155"),
        (
            "[1900 w+1790 B t+10 !2300:2100 b",
            Cause.TOO_BIG,
            "UL151",
        ),  # a gradient
        ("[1000 w+900 !300:2000", Cause.LIMITED, "UL156"),  # the device had it
        ("[1000 a+100 w+600 b+200 a- !150:2000", Cause.FRAGMENTED, "UL152"),
        (
            "[1000 "
            + LEAK.removeprefix("[3900 w+100 ").replace("500@", "90@").replace(":100", ":2000"),
            Cause.LEAKED,
            "UL153",
        ),
    ],
)
def test_each_failure_has_one_cause(
    report_of: ReportOf, script: str, cause: Cause, code: str
) -> None:
    report = report_of(script, has_record=True)
    shortage = report.devices[0].shortage
    assert shortage is not None
    assert shortage.cause is cause
    first = find_findings(report)[0]
    assert (first.rule.code, first.is_fatal) == (code, True)
    assert first.gain_bytes == max(shortage.missing_bytes, 0)


def test_the_parts_of_the_device_are_added_up(report_of: ReportOf) -> None:
    report = report_of("[2000 a+100 w+1800 a- !300:150", has_record=True)
    shortage = report.devices[0].shortage
    assert shortage is not None
    assert shortage.missing_bytes == 150 * MIB
    assert shortage.free_reserved_bytes == 200 * MIB
    assert shortage.largest_free_bytes == 100 * MIB
    assert shortage.others_bytes == (4096 - 96 - 2000 - 150) * MIB


def test_without_the_size_of_the_device_others_are_not_known(report_of: ReportOf) -> None:
    shortage = report_of("[2000 w+1900 !300:100").devices[0].shortage
    assert shortage is not None
    assert shortage.others_bytes is None
    assert shortage.cause is Cause.TOO_BIG


def test_a_program_that_went_on_was_not_ended_by_it(report_of: ReportOf) -> None:
    report = report_of("[3900 w+3850 !200:100 w- a+50", has_record=True)
    shortage = report.devices[0].shortage
    assert shortage is not None and shortage.was_survived
    (finding,) = [one for one in find_findings(report) if one.rule.code == "UL151"]
    assert not finding.is_fatal
    assert "went on" in finding.what


def test_a_program_without_a_failure_has_no_shortage(report_of: ReportOf) -> None:
    assert report_of("[64 a+4").devices[0].shortage is None


def test_expandable_segments_leave_no_pieces(report_of: ReportOf) -> None:
    script = "[3900 a+100 w+3000 b+800 a- !150:100"
    report = report_of(script, has_record=True, allocator_settings={"expandable_segments": True})
    shortage = report.devices[0].shortage
    assert shortage is not None
    assert shortage.cause is Cause.TOO_BIG


def test_under_a_limit_of_the_process_the_device_is_not_too_full(report_of: ReportOf) -> None:
    (finding, *_) = find_findings(report_of("[1000 w+900 !300:2000", has_record=True))
    assert "1000.0 MiB are reserved, and 2.0 GiB of the device are free" in finding.what
    assert finding.evidence[0].endswith("2.0 GiB free, which the process may not have")
    assert "set_per_process_memory_fraction" in finding.change
    assert finding.gain_bytes == 200 * MIB
