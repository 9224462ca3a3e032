"""What a run does not know is said, and nothing that it does not know is said to fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ullage.explain.run import RunReport
from ullage.explain.verdict import ExitCode, Verdict
from ullage.log.model import ExitKind, Record

Make = Callable[..., Record]
OWN = 4711  # of `program`, and of records unless they say another


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"unrecorded": ((OWN, ""),)},
            "the program used the GPU and left no record of it (it left without Python's own end)",
        ),
        (
            {"unrecorded": ((OWN, "OSError: full"),)},
            "the program used the GPU and left no record of it (OSError: full)",
        ),
        ({"unrecorded": ((5, ""),)}, "process 5 used the GPU and left no record of it"),
        (
            {"left_running": ((5, "process 5 (a)"),)},
            "the program ended before the processes that it had started",
        ),
        ({"exit_code": 4}, "the program exited with code 4 before it used the GPU"),
        (
            {"exit_code": 134, "unrecorded": ((OWN, ""),)},
            "the program was ended by signal 6 (SIGABRT); it left no record of its use of the GPU",
        ),
        (
            {"exit_code": 137},
            (
                "the program was ended by signal 9 (SIGKILL, which the system sends when host "
                "memory runs out) before it used the GPU"
            ),
        ),
    ],
)
def test_a_program_without_a_record_has_failed(
    explain: Callable[..., RunReport], changes: dict[str, object], reason: str
) -> None:
    report = explain(**changes)
    assert (report.verdict, report.exit_code) == (Verdict.FAILED, ExitCode.PROGRAM_FAILED)
    assert report.reason == reason


def test_a_process_that_had_to_be_ended_while_it_used_the_gpu_leaves_no_answer(
    explain: Callable[..., RunReport], make_record: Make
) -> None:
    child = make_record("+4", pid=5, exit={"kind": "signal", "code": 143})
    report = explain(make_record("+4"), child, left_running=((5, "process 5 (a)"),))
    assert report.verdict is Verdict.FAILED
    assert report.reason.endswith("process 5 that it had started was still using the GPU")


def test_where_the_processes_that_are_known_hold_nothing_a_lost_one_decides(
    explain: Callable[..., RunReport], make_record: Make
) -> None:
    report = explain(make_record(""), unrecorded=((5, ""),))
    assert report.verdict is Verdict.FAILED
    assert report.reason == "process 5 used the GPU and left no record of it"


def test_other_losses_are_warnings(explain: Callable[..., RunReport], make_record: Make) -> None:
    report = explain(
        make_record("+4"),
        left_running=((6, "process 6 (sleep 600)"),),
        unrecorded=((5, ""),),
        not_kept=("the snapshot 'a' could not be written: full",),
    )
    assert report.verdict is Verdict.FITS
    assert report.warnings[:3] == (
        "the snapshot 'a' could not be written: full",
        "the program left process 6 (sleep 600) running; it was ended",
        "process 5 used the GPU and left no record: its memory is not counted",
    )


def test_an_exit_that_only_the_parent_saw_is_in_the_report(
    explain: Callable[..., RunReport], make_record: Make
) -> None:
    report = explain(make_record("+4"), make_record("+4", pid=5), exit_code=5)
    own, child = (process.record.exit for process in report.processes)
    assert (own.kind, own.code) == (ExitKind.SYSTEM_EXIT, 5)
    assert child.kind is ExitKind.RETURNED
    assert report.reason == "the program exited with code 5"


def test_a_program_that_ctrl_c_ended_before_its_record_was_interrupted(
    explain: Callable[..., RunReport],
) -> None:
    report = explain(exit_code=130)
    assert (report.reason, report.exit_code) == ("interrupted", ExitCode.INTERRUPTED)


def test_a_launcher_whose_processes_used_the_gpu_did_not_fail_before_that(
    explain: Callable[..., RunReport], make_record: Make
) -> None:
    child = make_record("+4", pid=5, exit={"kind": "signal", "code": 143})
    reason = explain(child, exit_code=1).reason
    assert reason == "the program exited with code 1; the processes that it started used the GPU"


def test_a_launcher_fails_for_the_reason_of_its_process(
    explain: Callable[..., RunReport], make_record: Make
) -> None:
    raised = {"kind": "exception", "exception": "builtins.ValueError", "message": "no data",
              "where": "train.py:9 in main", "code": 1}  # fmt: skip
    reason = explain(make_record("+4", pid=5, exit=raised), exit_code=1).reason
    assert reason == "a process that it started: ValueError: no data at train.py:9 in main"
