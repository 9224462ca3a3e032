"""What techniques prove of a program before they change it, and where they say that they do not go.

That a program trains the same under them is in test_same_training.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.alone import printed_by

from ullage.act.techniques.catalog import TECHNIQUES

# What bfloat16 can tell apart, some times over.
BFLOAT16 = 2e-2


@pytest.fixture(scope="module")
def positions(thin_python: Path) -> Mapping[str, Mapping[str, Any]]:
    """What is said of modules that treat positions by themselves, and of others."""
    found: Mapping[str, Mapping[str, Any]] = printed_by(thin_python, "techniques/positions.py")
    return found


@pytest.fixture(scope="module")
def reruns(thin_python: Path) -> Mapping[str, Any]:
    """What checkpoints are told, and what attention is fused."""
    found: Mapping[str, Any] = printed_by(thin_python, "techniques/reruns.py")
    return found


@pytest.fixture(scope="module")
def heads(thin_python: Path) -> Mapping[str, Any]:
    """The loss by chunks, however a program takes it, or not at all."""
    found: Mapping[str, Any] = printed_by(thin_python, "techniques/heads.py")
    return found


def test_modules_that_treat_positions_by_themselves_are_proved_to(
    positions: Mapping[str, Mapping[str, Any]],
) -> None:
    assert set(positions["proved"].values()) == {""}


def test_what_is_proved_has_a_jacobian_without_other_positions(
    positions: Mapping[str, Mapping[str, Any]],
) -> None:
    assert all(positions["apart"].values())


def test_a_proof_keeps_nothing_of_the_module(positions: Mapping[str, Mapping[str, Any]]) -> None:
    assert positions["is freed"]["weight"]


def test_whatever_could_let_positions_meet_is_refused(
    positions: Mapping[str, Mapping[str, Any]],
) -> None:
    refused = positions["refused"]
    assert len(refused) > 25
    assert {name for name, reason in refused.items() if not reason} == set()
    assert "aten::_scaled_dot" in refused["fused_attention_whose_projection_is_zero"]
    assert "'bmm'" in refused["attention_whose_projection_is_zero"]


def test_random_numbers_are_kept_for_tensors_that_are_given_by_name(
    reruns: Mapping[str, Any],
) -> None:
    assert reruns["devices"] == ["cpu"]


def test_attention_is_fused_only_where_the_kernels_compute_the_same(
    reruns: Mapping[str, Any],
) -> None:
    results = dict(reruns["attention"])
    assert results.pop("plain") == "equal"
    assert all("do not compute what" in result for result in results.values())


def test_a_loss_by_chunks_is_the_same_but_for_the_order_of_sums(heads: Mapping[str, Any]) -> None:
    assert {name: off for name, off in heads["float32"].items() if off > 1e-5} == {}
    assert heads["as many words as features"] < 1e-5
    assert heads["float64"] < 1e-13


def test_a_loss_by_chunks_rounds_as_the_program_does(heads: Mapping[str, Any]) -> None:
    assert heads["bfloat16"] < BFLOAT16
    assert {name: off for name, off in heads["autocast"].items() if off > BFLOAT16} == {}


def test_what_else_is_done_to_logits_is_refused_by_name(heads: Mapping[str, Any]) -> None:
    reasons = heads["refused"]
    assert {name for name, why in reasons.items() if "'chunked_loss'" not in why} == set()
    assert "'div'" in reasons["capped"]
    assert "in place" in reasons["in place"] and "in place" in reasons["by an index"]
    assert "gradient" in reasons["own backward"] and "gradients" in reasons["hooked"]


def test_every_technique_states_its_precondition() -> None:
    missing = [one.name for one in TECHNIQUES.values() if not (one.precondition and one.proof)]
    assert missing == []
