"""Failures that the program caught: made good by the same work later, or lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ullage.explain.lost_work import Attempt, not_made_good
from ullage.explain.program import Program
from ullage.explain.run import explain_run
from ullage.explain.verdict import Verdict
from ullage.facts.gpus.catalog import Gpu
from ullage.log.model import OutOfMemory, Record

Make = Callable[..., Record]
OOM = OutOfMemory(0, 0, 1, None, "train.py:3 in main")


def lost_of(*sizes: int, varies: bool) -> list[int]:
    """The places of the failures that are lost; a negative size failed."""
    attempts = [
        Attempt(abs(size), size < 0, replace(OOM, position=number) if size < 0 else None)
        for number, size in enumerate(sizes)
    ]
    return [oom.position for oom in not_made_good(attempts, varies=varies)]


@pytest.mark.parametrize("varies", [True, False])
@pytest.mark.parametrize(
    ("sizes", "lost"),
    [
        ((-64, -64, -64, -64), [0, 1, 2, 3]),  # four batches
        ((-64,), [0]),
        ((8, -64, 8), [1]),
        ((8, 8, -64, *[8] * 50), [2]),
        ((64, 64, -64), [2]),
        ((-64, -64, -64, 8), [0, 1]),  # the third may have been reduced
        ((-64, 8, -64, 4), [2]),  # one size is reduced to one
        ((-64, 32, 32, -64, 32, 32), []),  # each batch in halves
        ((64, 64, -64, 64), []),  # a retry
        ((-64, 64), []),  # a rung of the guard
        ((-128, -64, 32, 32), []),  # a search from above
        ((-100, -90, 81, 81), []),
        ((1, 2, 4, 8, -16), []),  # a search from below
        ((1, 2, 4, 8, -16, 8, 8), []),
        ((1, 2, 4, -8, -6, 5), []),  # and then between
        ((1, 2, 4, -8, 6, -7), []),
        ((10, 20, 30, -40), []),
        ((64, 64, -64, 32, 32), []),  # a batch size that is reduced for good
    ],
)
def test_a_failure_is_made_good_by_the_same_work_with_as_much_or_less(
    sizes: tuple[int, ...], lost: list[int], *, varies: bool
) -> None:
    assert lost_of(*sizes, varies=varies) == lost


def test_among_batches_of_all_sizes_a_smaller_one_is_the_next() -> None:
    assert lost_of(9, 5, -64, 7, 3, varies=True) == [2]
    assert lost_of(9, 5, -64, 7, 3, varies=False) == []


@pytest.mark.parametrize(
    ("script", "num_lost"),
    [
        ("F +4 !900 f!8x8 " * 4, 4),
        ("F +4 f:8x8 B +4 !900 b " * 3, 3),  # in backward
        ("F +4 f:8x8 !900 B b S F +4 f:4x8 B b S", 0),  # between: a smaller batch
        ("F +4 f:8x8 B b O o S F +4 !900 f!64x8 F +4 f:8x8 B b O o S", 1),
        ("F +4 !900 f:8x8", 0),  # the model itself has caught it
        ("F:1 +4 !900 f!8x8 F:2 +4 f:8x8", 1),  # another module does other work
        ("F +4 f:2x8 B b O o S F +4 !900 f!8x8" + " F +4 f:4x8 B b" * 2 + " O o S", 0),  # in parts
        ("F +4 f:4x8 B b O o S F +4 f:2x8 B b O o S F +4 !900 f!8x8 F +4 f:4x8 B b O o S", 1),
        ("F +4 f:8x8 B b O +4 !900 o S", 0),  # the guard has finished the step
        ("F +4 f:8x8 B b O +4 !900 o", 1),
    ],
)
def test_calls_of_a_module_are_the_same_work(
    make_record: Make, program: Program, small_gpu: Gpu, script: str, num_lost: int
) -> None:
    report = explain_run(
        [(make_record(script, modules=["encoder", "decoder", "head"]), None)],
        program=program, torch="2", gpu=small_gpu, is_unlimited=False,
    )  # fmt: skip
    assert report.verdict is (Verdict.OUT_OF_MEMORY if num_lost else Verdict.FITS)
    times = "once" if num_lost == 1 else f"{num_lost} times"
    assert not num_lost or report.reason == (
        f"no room for 900 B at train.py:3 in main; it ended what this was for, {times}, and the "
        "program went on without it"
    )


@pytest.mark.parametrize(
    ("script", "attempts", "verdict"),
    [
        ("+8 !900 +4", [[[0], [-900, 4]]], Verdict.FITS),
        ("+8 !900 +4", [[[0], [-900]]], Verdict.OUT_OF_MEMORY),
        ("+8 !900 +4 !900", [[[0], [-900, 900]], [[1], [-900]]], Verdict.OUT_OF_MEMORY),
        ("+8 !900 +4", [], Verdict.FITS),  # no stacks: not known
    ],
)
def test_elsewhere_requests_of_one_statement_are(
    make_record: Make, program: Program, small_gpu: Gpu, script: str,
    attempts: list[object], verdict: Verdict,
) -> None:  # fmt: skip
    report = explain_run(
        [(make_record(script, attempts=attempts), None)],
        program=program, torch="2", gpu=small_gpu, is_unlimited=False,
    )  # fmt: skip
    assert report.verdict is verdict
