"""The allocator under a guard, on the phantom: after a step that ran out of memory it holds what it
holds after one that did not, whether the step is guarded or a split batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.phantom.alone import SOURCE
from tests.phantom.conftest import RunProgram

pytestmark = pytest.mark.phantom
STEPS, LONG_STEPS = 6, 60
# The steps of a plain training with long batches take more than LITTLE.
MUCH, LITTLE = "8GiB", "3.2GiB"

Document = dict[str, Any]
OnPhantom = Callable[..., Document]


@pytest.fixture(scope="session")
def on_phantom(run_program: RunProgram) -> OnPhantom:
    """`on_phantom("guard/graph.py", memory="8GiB")`: what a program prints on a GPU of a size."""

    def run(name: str, *words: str, memory: str = MUCH, **more: Any) -> Document:
        options = ("--memory", memory, *more.pop("options", ()))
        outcome = run_program(name, SOURCE, *words, options=options, timeout_s=3000, **more)
        assert outcome.exit_code == 0, outcome.stderr
        document: Document = outcome.printed
        return document

    return run


@pytest.fixture
def plain(on_phantom: OnPhantom) -> Document:
    """Trainings with memory for long batches, by the way."""
    return on_phantom("guard/long_batch.py", str(STEPS), "plain", "plain+accumulated")


@pytest.fixture
def guarded(on_phantom: OnPhantom) -> Document:
    """Trainings of which every third step runs out of memory, by the way."""
    return on_phantom("guard/long_batch.py", str(STEPS), "guarded", memory=LITTLE)


@pytest.fixture
def accumulated(on_phantom: OnPhantom) -> Document:
    """The same, with gradients of a micro-batch that came before."""
    return on_phantom("guard/long_batch.py", str(STEPS), "guarded+accumulated", memory=LITTLE)


def check_same(guarded: Document, plain: Document, num_steps: int) -> None:
    """The allocator is as without errors after every step, and the random numbers at the end."""
    assert plain["peak"] > 3 << 30
    assert guarded["peak"] < 2.3 * (1 << 30)
    assert guarded["recoveries"] == num_steps // 3
    expected = plain["rows"][-1]
    for row in guarded["rows"]:
        # No growth: the same bytes and the same number of tensors after every step.
        assert (row["allocated"], row["tensors"]) == (expected["allocated"], expected["tensors"])
    # What is reserved does not grow either, and is given back at the end.
    assert len({row["reserved"] for row in guarded["rows"][2:]}) == 1
    assert guarded["at_end"] == plain["at_end"]
    # The GPU's generator has gone as far as in the run without errors.
    assert guarded["generator"] == plain["generator"]


def test_the_allocator_is_as_without_errors(plain: Document, guarded: Document) -> None:
    check_same(guarded["guarded"], plain["plain"], STEPS)


@pytest.mark.slow
def test_the_allocator_is_as_without_errors_after_many_steps(on_phantom: OnPhantom) -> None:
    name, steps = "guard/long_batch.py", str(LONG_STEPS)
    guarded = on_phantom(name, steps, "guarded", memory=LITTLE)["guarded"]
    check_same(guarded, on_phantom(name, steps, "plain")["plain"], LONG_STEPS)


@pytest.mark.nightly
def test_500_steps_do_not_grow(on_phantom: OnPhantom) -> None:
    document = on_phantom("guard/long_batch.py", "500", "guarded", memory=LITTLE)
    rows = document["guarded"]["rows"]
    assert len({(row["allocated"], row["tensors"]) for row in rows}) == 1
    assert len({row["reserved"] for row in rows[2:]}) == 1


def test_gradients_of_a_micro_batch_stay_where_they_are(
    plain: Document, accumulated: Document
) -> None:
    """Backward runs on a thread of the GPU, and the sums of the second try there too."""
    ours, theirs = accumulated["guarded+accumulated"], plain["plain+accumulated"]
    assert ours["recoveries"] == STEPS // 3
    rows = [[row["allocated"] for row in each["rows"]] for each in (ours, theirs)]
    assert rows[0] == rows[1]
    assert ours["generator"] == theirs["generator"]


def test_the_users_lines_say_what_happened(guarded: Document) -> None:
    first, *_, last = guarded["guarded"]["said"]
    assert first.startswith("ullage: guard: 3 rungs: 0. the unchanged program; 1. checkpoint (3")
    assert first.endswith("none of them is proved to fit; `ullage fit` makes plans that are")
    assert last == f"ullage: guard: recoveries: {STEPS // 3} in {STEPS} steps"
    lines = [line for line in guarded["guarded"]["said"] if "out of memory" in line]
    assert len(lines) == STEPS // 3
    assert all(
        line.endswith("ran the step again on rung 1 (checkpoint (3 modules))") for line in lines
    )


@pytest.mark.slow
def test_a_recovery_loses_at_most_two_steps(on_phantom: OnPhantom) -> None:
    name, clock = "guard/long_batch.py", ("--clock", "virtual")
    plain = on_phantom(name, "6", "plain", options=clock)["plain"]
    guarded = on_phantom(name, "6", "guarded", memory=LITTLE, options=clock)["guarded"]
    assert guarded["recoveries"] == 2
    for ours, theirs in zip(guarded["rows"][2::3], plain["rows"][2::3], strict=True):
        lost = ours["seconds"] - theirs["seconds"]
        assert 0 < lost < 2 * theirs["seconds"]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["first", "later"])
def test_each_limit_of_memory_ends_in_the_same_state(on_phantom: OnPhantom, when: str) -> None:
    """Limits from half of the peak to the peak: the first failure is another one each time."""
    document = on_phantom("guard/limits.py", when, "7", *"123456")
    plain, rows = document["plain"], document["rows"]
    recovered = [row for row in rows if row["recoveries"]]
    assert len(recovered) > 2
    for row in recovered:
        assert row["requested"] == plain["requested"]
        assert row["tensors"] == plain["tensors"]
        # Gradients and states that the step makes get cached blocks of another plan's step, and
        # are rounded up otherwise. A later step makes nothing that stays.
        tolerance = 0 if when == "later" else 0.01 * plain["allocated"]
        assert abs(row["allocated"] - plain["allocated"]) <= tolerance
    # Where no rung fits, the program gets its error: nothing else ends a step.
    assert {row["end"] for row in rows if not row["recoveries"]} <= {"no rung"}


def test_a_cuda_graph_is_refused(on_phantom: OnPhantom) -> None:
    document = on_phantom("guard/graph.py")
    assert document["answer"].startswith("GuardError: the program has a CUDA graph, whose replays")
    assert document["without"] == 1


@pytest.fixture
def in_parts(on_phantom: OnPhantom) -> Document:
    """Trainings whose long batch fits only in parts, by the way."""
    ways = ("guarded", "adapts", "splits")
    return on_phantom("guard/parts_on_gpu.py", *ways, memory="1.7GiB")


@pytest.mark.slow
def test_a_batch_that_fits_on_no_rung_is_trained_in_parts(
    on_phantom: OnPhantom, in_parts: Document
) -> None:
    plain, guarded = on_phantom("guard/parts_on_gpu.py", "plain")["plain"], in_parts["guarded"]
    assert [row["rung"] for row in guarded["rows"]] == [0, 3, 3, 2, 2, 3, 3, 3, 3]
    for ours, theirs in zip(guarded["rows"], plain["rows"], strict=True):
        assert (ours["requested"], ours["tensors"]) == (theirs["requested"], theirs["tensors"])
        assert abs(ours["allocated"] - theirs["allocated"]) <= 0.01 * theirs["allocated"]
    assert guarded["peak"] < 1.7 * 2**30 < plain["peak"]


@pytest.mark.slow
def test_adapting_splits_a_batch_before_it_fails_where_allowed(in_parts: Document) -> None:
    allowed, without = in_parts["splits"], in_parts["adapts"]
    # The first long batch is far from all before it; the later ones are met before they fail.
    assert allowed["recoveries"] <= 1
    assert [line for line in allowed["log"] if ": split: " in line]
    assert any(": whole: " in line for line in allowed["log"])
    assert max(row["rung"] for row in allowed["rows"]) > 2
    assert not [line for line in without["log"] if ": split: " in line]
    assert without["recoveries"] >= 2
