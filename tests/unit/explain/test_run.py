"""A whole run: sums that must hold, and what the verdict is when it ends in each way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.answers.text import render
from ullage.explain.basis import BasisKind
from ullage.explain.device import DeviceReport
from ullage.explain.program import Program
from ullage.explain.run import RunReport, explain_run
from ullage.explain.verdict import ExitCode, Verdict
from ullage.facts.gpus.catalog import Gpu
from ullage.log.model import Category, Record
from ullage.verbs.run.text import run_blocks, verdict_line

Make = Callable[..., Record]
OOM_EXIT = {
    "kind": "exception", "exception": "torch.OutOfMemoryError", "message": "CUDA out of memory. x",
    "where": "train.py:3 in main", "code": 1,
}  # fmt: skip
# What torch makes of an out-of-memory in the workspaces of all of cuDNN's algorithms.
NO_ENGINE = "GET was unable to find an engine to execute this computation"


def explain(
    record: Record, program: Program, gpu: Gpu, *, is_unlimited: bool = False, exit_code: int = 0
) -> RunReport:
    return explain_run(
        [(record, "a.pickle")],
        program=replace(program, exit_code=exit_code),
        torch="2.15.0",
        gpu=gpu,
        is_unlimited=is_unlimited,
        catalogued=lambda: (gpu, replace(gpu, slug="tiny", total_bytes=130)),
    )


def check_sums(device: DeviceReport) -> None:
    peak, ledger = device.at_peak, device.ledger
    assert sum(peak.by_category.values()) == peak.allocated_bytes
    assert peak.allocated_bytes == device.totals.peak_allocated_bytes
    assert min(peak.by_category.values()) >= 0
    parts = sum(ledger.owners.by_category.values()) + ledger.cache_bytes + ledger.context_bytes
    assert parts + ledger.non_torch_bytes + ledger.free_bytes == ledger.total_bytes
    assert ledger.cache_bytes >= 0
    assert device.headroom.low_bytes <= device.headroom_bytes <= device.headroom.middle_bytes
    assert device.headroom.middle_bytes <= device.headroom.high_bytes
    assert all(step.peak.allocated_bytes <= peak.allocated_bytes for step in device.steps)


WORDS = st.sampled_from(
    [
        "+4",
        "+2 =parameter",
        "+3 w",
        "+5 =gradient",
        "F",
        "f",
        "B",
        "b",
        "O",
        "o",
        "S",
        "N",
        "@0",
        "@1",
        "!9",
    ]
)


@given(words=st.lists(WORDS, max_size=40))
def test_parts_sum_to_the_whole(
    make_record: Make, program: Program, small_gpu: Gpu, words: list[str]
) -> None:
    report = explain(make_record(" ".join(words)), program, small_gpu)
    for device in report.devices:
        check_sums(device)


def test_the_peak_is_the_highest_moment_and_names_its_owners(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    record = make_record("+10 =parameter +3 F +20 +5 -5 f B +10 =gradient -20 b -10 S")
    device = explain(record, program, small_gpu).devices[0]
    owned = {c.value: size for c, size in device.at_peak.by_category.items() if size}
    assert owned == {"parameter": 10, "input": 3, "activation": 20, "gradient": 10}
    assert device.peak_used_bytes == 43 + 120
    assert device.headroom_bytes == 1000 - 43 - 120


def with_late_segment(record: Record, size_bytes: int) -> Record:
    """The record with one more segment from its last event on."""
    reserved = record.events.reserved_bytes.copy()
    reserved[-1] += size_bytes
    totals = replace(record.devices[0], peak_reserved_bytes=int(reserved.max()))
    events = replace(record.events, reserved_bytes=reserved)
    return replace(record, events=events, devices=(totals,))


def test_the_ledger_is_of_the_moment_with_the_most_allocated(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    # A small segment that comes late makes the most reserved, with next to nothing allocated.
    record = with_late_segment(make_record("+10 =parameter F +30 f -30 +2"), 2)
    report = explain(record, program, small_gpu)
    (device,) = report.devices
    assert device.ledger.owners == device.at_peak
    assert (device.ledger.owners.allocated_bytes, device.ledger.cache_bytes) == (40, 0)
    assert device.ledger.free_bytes == 1000 - 40 - 120
    assert device.headroom_bytes == 1000 - 42 - 120, "the verdict is about the most reserved"
    assert "at another moment 2 B more was reserved" in render(run_blocks(report), full=True)


def test_all_tables_of_a_report_are_of_one_moment(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    record = with_late_segment(make_record("F >a +30 < f -30 F >b +7 < f +2"), 2)
    (device,) = explain(record, program, small_gpu).devices
    assert [(one.path, one.size_bytes) for one in device.ledger.modules] == [("a", 30)]
    assert device.ledger.modules == device.modules_at_peak
    # Where it ran out of memory, that is the moment of all.
    failed = make_record("F >a +30 < f -30 F >b +7 !990", exit=OOM_EXIT)
    (device,) = explain(failed, program, small_gpu, exit_code=1).devices
    assert [(one.path, one.size_bytes) for one in device.ledger.modules] == [("b", 7)]
    assert device.ledger.owners.allocated_bytes == 7


def test_what_a_capped_log_does_not_show_is_unattributed(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    record = make_record("+4 =parameter")
    totals = replace(record.devices[0], peak_allocated_bytes=9, peak_reserved_bytes=9)
    report = explain(replace(record, devices=(totals,)), program, small_gpu)
    check_sums(report.devices[0])
    assert report.devices[0].at_peak.by_category[Category.UNATTRIBUTED] == 5


@pytest.mark.parametrize(
    ("script", "exit_", "code", "verdict", "exit_code"),
    [
        ("+800", None, 0, Verdict.FITS, ExitCode.FINE),
        ("+880", None, 0, Verdict.FITS, ExitCode.FINE),
        ("+881", None, 0, Verdict.OUT_OF_MEMORY, ExitCode.ANSWER_IS_NO),
        ("+800 !300", OOM_EXIT, 1, Verdict.OUT_OF_MEMORY, ExitCode.ANSWER_IS_NO),
        ("+800 !300 +9", None, 0, Verdict.FITS, ExitCode.FINE),
        ("+8", OOM_EXIT | {"exception": "ValueError", "message": "x"}, 1, Verdict.FAILED, 3),
        ("+8", OOM_EXIT | {"exception": "RuntimeError",
                           "message": "CUDA error: CUBLAS_STATUS_ALLOC_FAILED"},
         1, Verdict.OUT_OF_MEMORY, 1),
        ("+8 !900", OOM_EXIT | {"exception": "RuntimeError", "message": NO_ENGINE},
         1, Verdict.OUT_OF_MEMORY, 1),
        ("+8", OOM_EXIT | {"exception": "RuntimeError", "message": NO_ENGINE},
         1, Verdict.FAILED, 3),
        ("+8", {"kind": "system_exit", "code": 4}, 4, Verdict.FAILED, ExitCode.PROGRAM_FAILED),
        ("+8", {"kind": "system_exit", "code": 0}, 0, Verdict.FITS, ExitCode.FINE),
        ("+8", {"kind": "steps_reached", "code": 0}, 0, Verdict.FITS, ExitCode.FINE),
        ("+8", {"kind": "signal", "code": 15}, 143, Verdict.FAILED, ExitCode.PROGRAM_FAILED),
        ("+8", {"kind": "exception", "exception": "KeyboardInterrupt", "code": 130}, 130,
         Verdict.FAILED, ExitCode.INTERRUPTED),
    ],
)  # fmt: skip
def test_the_verdict(
    make_record: Make, program: Program, small_gpu: Gpu, script: str,
    exit_: dict[str, object] | None, code: int, verdict: Verdict, exit_code: ExitCode,
) -> None:  # fmt: skip
    record = make_record(script, **({} if exit_ is None else {"exit": exit_}))
    report = explain(record, program, small_gpu, exit_code=code)
    assert (report.verdict, report.exit_code) == (verdict, exit_code)


def test_a_program_that_ran_through_and_may_not_fit_is_told_why(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    reason = explain(make_record("+890"), program, small_gpu).reason
    assert "10 B" in reason and "between 80 B and 120 B" in reason


def test_a_survived_out_of_memory_is_a_warning_with_its_place(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    report = explain(make_record("+8 !900 +4"), program, small_gpu)
    assert report.processes[0].oom is None
    assert "once (first at train.py:3 in main)" in report.warnings[0]


def test_without_a_limit_everything_fits_and_the_gpus_are_named(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    report = explain(make_record("+2000"), program, small_gpu, is_unlimited=True)
    assert (report.verdict, report.fits_on) == (Verdict.FITS, ())
    report = explain(make_record("+10"), program, small_gpu, is_unlimited=True)
    assert report.fits_on == ("tiny", "small")


def test_a_program_without_a_gpu_fits_with_a_warning(program: Program, small_gpu: Gpu) -> None:
    report = explain_run([], program=program, torch="2", gpu=small_gpu, is_unlimited=False)
    assert report.verdict is Verdict.FITS
    assert "did not use a GPU" in report.warnings[0]


def test_two_last_steps_that_differ_are_a_warning(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    settled = "F +4 f B -4 b S "
    assert explain(make_record(settled * 3), program, small_gpu).warnings == ()
    growing = explain(make_record(settled + "F +9 f B -9 b S"), program, small_gpu)
    assert "last two steps still differ" in growing.warnings[0]


@pytest.mark.parametrize(
    ("script", "warnings"),
    [
        ("F +4 f:4x8 B -4 b S F +4 f:4x8 B -4 b S F +2 f:2x8 B -2 b S", 0),  # a partial batch
        ("F +4 f:4x8 B -4 b S F +9 f:9x8 B -9 b S", 1),
        ("F +4 f:4x8 B -4 b S F +9 f:4x8 B -9 b S", 1),
        ("F +9 f:9x8 B -9 b S F +4 f:4x8 B -4 b S F +7 f:7x8 B -7 b S", 0),  # not the highest
        ("F +4 f B -4 b S F +4 f B -4 b S N +9 f -9 F +4 f B -4 b S", 0),  # an evaluation
    ],
)
def test_a_last_step_that_differs_for_a_known_reason_is_no_warning(
    make_record: Make, program: Program, small_gpu: Gpu, script: str, warnings: int
) -> None:
    assert len(explain(make_record(script), program, small_gpu).warnings) == warnings


def test_a_larger_batch_in_the_last_step_is_named(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    record = make_record("F +4 f:4x8 B -4 b S F +9 f:9x8 B -9 b S")
    (warning,) = explain(record, program, small_gpu).warnings
    assert "other shapes and made its peak 5 B higher" in warning


LEAK = "F +20000 f B -20000 b +8192 "


@pytest.mark.parametrize("num_steps", [3, 4, 30])
def test_equal_growth_of_each_step_is_in_the_headline(
    make_record: Make, program: Program, small_gpu: Gpu, num_steps: int
) -> None:
    size = dict.fromkeys(("total_bytes", "total_low_bytes", "total_high_bytes"), 2**20)
    gpu = replace(small_gpu, **size)
    report = explain(make_record((LEAK + "S ") * num_steps), program, gpu)
    (device,) = report.devices
    left = 2**20 - 100 - (20000 + (num_steps - 1) * 8192)
    assert (device.growth, device.full_after_steps) == (8192, round(left / 8192))
    assert report.verdict is Verdict.FITS and report.warnings == ()
    text = f"grows by 8.0 KiB a step: full after about {device.full_after_steps} more"
    assert verdict_line(report).endswith(f"; {text}")


def test_growth_below_the_threshold_of_settled_peaks_is_said(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    gpu = replace(small_gpu, total_bytes=2**23)
    record = make_record("+4000000 =parameter " + "N f +8192 S " * 10)
    assert "grows by 8.0 KiB a step" in verdict_line(explain(record, program, gpu))


@pytest.mark.parametrize(
    ("script", "growth"),
    [
        (LEAK * 2 + "S " + LEAK + "S ", None),  # two steps
        ("F +8192 f B b O +8192 =optimizer_state o S " * 6, 8192),
        ("F f B b O +8192 =optimizer_state o S " * 6, 0),  # a history has an end
        ("F +8192 f B -8192 b S " * 6, 0),
        (" ".join(f"N f:4x{n} +{n * 8192} S -{n * 8192}" for n in range(1, 9)), None),  # longer
        ("N:1 f S N:2 f +8192 S " * 4, 8192),  # by turns: a step of the same root
    ],
)
def test_growth_is_of_steps_that_did_the_same(
    make_record: Make, program: Program, small_gpu: Gpu, script: str, growth: int | None
) -> None:
    gpu = replace(small_gpu, total_bytes=2**20)
    assert explain(make_record(script), program, gpu).devices[0].growth == growth


@pytest.mark.parametrize(
    ("script", "warnings"),
    [
        ("N:1 +40 f -40 S N:2 +9 f -9 S " * 3, 0),
        ("N:1 +40 f -40 S N:1 +50 f -50 S N:2 +9 f -9 S " * 3, 0),  # one is called twice
        ("N:1 +40 f -40 S N:2 +9 f -9 S N:1 +60 f -60 S N:2 +9 f -9 S", 1),
        ("F:1 +40 f B -40 b O o S F:2 +9 f B -9 b O o S " * 3, 0),  # two models by turns
        ("N:1 +40 f -40 S " + "N:2 +50 f -50 S " * 3 + "N:3 +9 f -9 S", 0),  # a decoder at the end
    ],
)
def test_a_step_is_compared_with_the_last_one_of_the_same_root(
    make_record: Make, program: Program, small_gpu: Gpu, script: str, warnings: int
) -> None:
    assert len(explain(make_record(script), program, small_gpu).warnings) == warnings


def test_two_processes_on_one_device_have_rows_of_different_names(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    report = explain_run(
        [(make_record("+4"), "a"), (replace(make_record("+8"), pid=1), "b")],
        program=program, torch="2", gpu=small_gpu, is_unlimited=False,
    )  # fmt: skip
    text = render(run_blocks(report), full=True)
    assert "process 4711, device 0" in text and "process 1, device 0" in text


def test_nothing_assumed_is_exact_and_what_was_assumed_is_listed(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    exact = explain(make_record("+4"), program, small_gpu)
    assert exact.allocator_basis.kind is BasisKind.EXACT
    assert exact.device_basis.assumptions[0].size_bytes == 40
    read = ["read", "host read", "train.py:9 in main", 3, None, 12, None]
    conv = ["workspace", "cuDNN", "", 2, 1, 5, 11]
    assumed = explain(make_record("+4", basis=[read, conv]), program, small_gpu)
    assert assumed.allocator_basis.kind is BasisKind.ASSUMED
    assert [made.size_bytes for made in assumed.allocator_basis.assumptions] == [10, 12]
    headroom = assumed.devices[0].headroom
    assert (headroom.workspace_more_bytes, headroom.workspace_less_bytes) == (6, 4)


def test_each_step_and_phase_has_its_peak(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    record = make_record("+50 -50 +1 F +4 f B +2 -4 b O +9 -9 o S F +4 f B +3 -4 b O o S F +7")
    steps = explain(record, program, small_gpu).devices[0].steps
    assert [(step.index, step.is_complete) for step in steps] == [(0, True), (1, True), (2, False)]
    assert [step.peak.allocated_bytes for step in steps] == [12, 10, 13]
    names = ("forward", "backward", "optimizer")
    assert [steps[0].phases[name].allocated_bytes for name in names] == [5, 7, 12]


def test_the_started_process_comes_first_and_its_end_decides(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    child = replace(make_record("+8"), pid=1, started_s=0.0)
    report = explain_run(
        [(child, "b"), (make_record("+4"), "a")],
        program=program,
        torch="2",
        gpu=small_gpu,
        is_unlimited=False,
    )
    assert [process.record.pid for process in report.processes] == [4711, 1]
