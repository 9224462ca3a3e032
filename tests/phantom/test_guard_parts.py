"""Steps whose batch is split where no plan fits: the same up to rounding, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.phantom.alone import printed_by

# Of numbers with 64 bits.
ROUNDING = 1e-13


@pytest.fixture(scope="session")
def answers(thin_python: Path) -> dict[str, Any]:
    """What each scenario answered."""
    document: dict[str, Any] = printed_by(thin_python, "guard/parts.py")
    return document


@pytest.mark.parametrize(("rows", "rung", "parts"), [("4", 3, 2), ("2", 4, 4)])
def test_a_batch_that_fits_on_no_plan_is_split(
    answers: dict[str, Any], rows: str, rung: int, parts: int
) -> None:
    end = answers["it_recovers"][rows]
    assert end["rungs"] == [0, rung, rung]
    assert end["state"] < ROUNDING and end["losses"] < ROUNDING
    recovery, last = end["said"]
    assert recovery.endswith(
        f"on rung {rung} (checkpoint (3 modules), the batch in {parts} parts): "
        "the same up to rounding"
    )
    assert last.endswith("recoveries: 1 in 3 steps, 2 of them with the batch in parts")


def test_a_part_that_counts_for_nothing_goes_with_a_neighbour(answers: dict[str, Any]) -> None:
    # Of eight rows one has no token that counts: no seven parts have a mean that is no number.
    assert answers["counts_for_nothing"] == [7, 2, 1.0]


def test_without_memory_for_a_part_the_error_names_all_rungs(answers: dict[str, Any]) -> None:
    text = answers["it_recovers"]["none"]
    assert text.startswith("OutOfMemoryError: ")
    assert "rung 5 (checkpoint (3 modules), the batch in 8 parts); no rung is left, and all" in text


def test_weights_are_of_what_the_loss_is_a_mean_of(answers: dict[str, Any]) -> None:
    assert answers["weights_count"] > 1e-3


def test_a_split_is_checked_by_the_gradients_of_its_parts(answers: dict[str, Any]) -> None:
    check = answers["the_split_is_checked"]
    assert check["right"] < ROUNDING
    assert check["wrong"].startswith("GuardError: the gradient of '")
    assert "The weights are not those of the loss" in check["wrong"]
    assert check["none"].startswith("SpecError: the step has called no optimizer")
    assert check["one"].startswith("SpecError: the batch is not split in two")
    # Nothing of it is left.
    assert (check["same"], check["training"], check["gradients"], check["hooks"]) == (
        True, True, 0, 0,
    )  # fmt: skip


def test_the_guard_goes_back_up_to_the_whole_batch(answers: dict[str, Any]) -> None:
    assert answers["it_climbs_back"] == [0, 4, 4, 3, 3, 2, 2, 1, 1, *[0] * 7]


def test_what_the_step_draws_is_said_to_differ(answers: dict[str, Any]) -> None:
    assert answers["draws_are_named"].endswith("the same up to rounding and what is drawn")


def test_gradients_from_before_are_the_same_or_refused(answers: dict[str, Any]) -> None:
    end, distance = answers["gradients_of_a_micro_batch"]["forward"]
    assert end == "nothing" and distance < ROUNDING
    # Sums of the whole batch have been added: parts would add theirs.
    end, _ = answers["gradients_of_a_micro_batch"]["backward"]
    assert end.endswith("no rung is left, and gradients have a part of the step's sums: zero them")


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("weights", "GuardError: split= gave the weights [0.6, 0.6], whose sum is 1.2"),
        ("negative", "GuardError: split= gave the weights [1.5, -0.5]"),
        ("rows", "GuardError: split= left [2, 4] rows of tensor 'x' of shape (8, 3, 12)"),
        ("tensor", "GuardError: split= left [0, 0] rows of tensor 'targets'"),
        ("parts", "GuardError: split= made 8 parts; expected 1 to 2"),
        ("padding", "GuardError: weigh= gave [0.0, 0.0] for the parts"),
        ("optimizer", "GuardError: the function has called AdamW.step() for a part of the batch"),
        ("words", "SpecError: a list of the batch is as long as it has rows (4)"),
        ("rows differ", "SpecError: the batch has tensors 0 (4, 2), 1 (3, 2)"),
        ("no tensor", "SpecError: the batch has tensors of no shape"),
    ],
)
def test_a_broken_contract_is_refused(answers: dict[str, Any], what: str, text: str) -> None:
    assert answers["what_is_refused"][what].startswith(text)


def test_programs_that_would_train_otherwise_are_not_split(answers: dict[str, Any]) -> None:
    end, lines, without = answers["what_is_not_split"]["batch norm"]
    assert "no rung is left, and all else is as before" in end
    (line,) = lines
    assert line.endswith("split: '1' has statistics of a batch, which are others for its parts")
    assert without == "nothing"  # with the statistics of an evaluation the batch is split
    end, lines, _ = answers["what_is_not_split"]["compiled"]
    assert "no rung is left" in end
    assert lines == ["ullage: guard: no batch is split: the model is compiled"]


def test_a_step_that_is_not_in_parts_is_run_whole(answers: dict[str, Any]) -> None:
    assert answers["a_plain_step_after_one_in_parts"] == [3, 2, 8]


def test_rows_of_nests_are_split_without_copies(answers: dict[str, Any]) -> None:
    assert answers["rows_are_split"] == {
        "kinds": ["UserDict", "tuple"], "rows": [2, 3, 3], "same": [2.0, "a", True],
        "weights": [0.4, 0.6], "few": [1, 1.0], "left": 5,
    }  # fmt: skip
