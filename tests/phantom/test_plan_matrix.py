"""No technique trains another model: it trains the same, or it is refused with a sentence."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage.techniques.catalog import TECHNIQUES

ROOT = Path(__file__).parents[2]
MATRIX = ROOT / "tests" / "programs" / "plans" / "matrix.py"
PROGRAMS = ROOT / "tests" / "programs" / "techniques"
TIMEOUT_S = 900
KINDS = (
    "causal", "bidirectional", "convolution", "batch_norm", "state_space", "mixture",
    "zero_projections", "tied", "dropout", "in_place", "called_twice", "statistics", "counting",
    "given",
)  # fmt: skip
ALONE = (
    "checkpoint", "checkpoint_segments", "selective_checkpoint", "offload_activations",
    "parameter_offload", "tiled_mlp", "flash_attention", "chunked_loss", "free_gradients",
    "optimizer_in_backward", "optimizer_kernel", "optimizer_offload",
)  # fmt: skip
# On the modules that a technique is for, in a usual loop: what is refused all the same.
REFUSED = {
    ("batch_norm", "tiled_mlp"): "changes its input",
    ("in_place", "selective_checkpoint"): "changes in place what is saved",
    ("mixture", "tiled_mlp"): "lets positions meet in 'mean'",
    **{(kind, "flash_attention"): "transformers or timm" for kind in KINDS},
}

Judge = Callable[..., Any]


@pytest.fixture(scope="module")
def run(thin_python: Path) -> Judge:
    """`run(program, "grid", "0", "40")`: the document in the last line of its output."""

    def run(program: Path, *words: str) -> Any:
        done = subprocess.run(
            [str(thin_python), str(program), *words], check=False, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="module")
def matrix(run: Judge) -> list[dict[str, Any]]:
    """The grid, and some cases that are drawn."""
    cases: list[dict[str, Any]] = run(MATRIX, "grid", "0", "60")
    return cases


@pytest.fixture(scope="module")
def positions(run: Judge) -> dict[str, dict[str, Any]]:
    """What is said of modules that treat positions by themselves, and of others."""
    found: dict[str, dict[str, Any]] = run(PROGRAMS / "positions.py")
    return found


@pytest.fixture(scope="module")
def reruns(run: Judge) -> dict[str, Any]:
    """What came of modules that run twice."""
    found: dict[str, Any] = run(PROGRAMS / "reruns.py")
    return found


def wrong(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that train another model, or fail."""
    fine = ("applied", "refused: ", "not there")
    return [one for one in cases if not one["result"].startswith(fine)]


def test_no_technique_silently_trains_another_model(matrix: list[dict[str, Any]]) -> None:
    assert wrong(matrix) == []


def test_each_technique_goes_with_the_models_that_it_is_for(matrix: list[dict[str, Any]]) -> None:
    grid = {(one["model"], one["technique"]): one["result"] for one in matrix if "loss" in one}
    assert set(grid) == {(kind, name) for kind in KINDS for name in ALONE}
    refused = {key for key, result in grid.items() if result.startswith("refused")}
    assert refused == set(REFUSED)
    assert all(REFUSED[key] in grid[key] for key in refused)
    assert {key for key, one in grid.items() if one == "not there"} == {
        ("mixture", "checkpoint_segments")
    }


def test_half_of_the_drawn_cases_are_applied(matrix: list[dict[str, Any]]) -> None:
    drawn = [one for one in matrix if "number" in one]
    assert sum(one["result"] == "applied" for one in drawn) > len(drawn) // 2


@pytest.mark.nightly
def test_five_hundred_drawn_cases_train_the_same_or_are_refused(run: Judge) -> None:
    cases = run(MATRIX, "drawn", "0", "500")
    assert len(cases) == 500
    assert wrong(cases) == []


def test_modules_that_treat_positions_by_themselves_are_proved_to(
    positions: dict[str, dict[str, Any]],
) -> None:
    assert set(positions["proved"].values()) == {""}


def test_what_is_proved_has_a_jacobian_without_other_positions(
    positions: dict[str, dict[str, Any]],
) -> None:
    assert all(positions["apart"].values())


def test_a_proof_keeps_nothing_of_the_module(positions: dict[str, dict[str, Any]]) -> None:
    assert positions["is freed"]["weight"]


def test_whatever_could_let_positions_meet_is_refused(
    positions: dict[str, dict[str, Any]],
) -> None:
    refused = positions["refused"]
    assert len(refused) > 25
    assert {name for name, reason in refused.items() if not reason} == set()
    assert "aten::_scaled_dot" in refused["fused_attention_whose_projection_is_zero"]
    assert "'bmm'" in refused["attention_whose_projection_is_zero"]


def test_gradients_that_a_program_misses_are_not_freed(run: Judge) -> None:
    found: dict[str, str] = run(PROGRAMS / "gradients.py")
    fine = {name for name, result in found.items() if result == "equal"}
    refused = {name for name, result in found.items() if " does not go with " in result}
    assert fine | refused == set(found)
    anyhow = ("usual", "zeroed_by_the_model", "zeroed_by_parts", "zeroed_by_hand", "by_closure",
              "zeroed_in_place", "zeroed_in_place_by_the_model")  # fmt: skip
    before_the_step = ("scaled_before_the_step", "a_step_left_out", "accumulated",
                       "rate_set_before_the_step", "decayed_before_the_step",
                       "evaluated_before_the_step")  # fmt: skip
    assert fine == {
        *(
            f"{loop}, {one}"
            for loop in anyhow
            for one in ("free_gradients", "optimizer_in_backward")
        ),
        *(f"{loop}, free_gradients" for loop in before_the_step),
    }


def test_a_second_run_starts_from_the_state_of_the_first(reruns: dict[str, Any]) -> None:
    modules: dict[str, str] = reruns["modules"]
    refused = {name for name, result in modules.items() if result.endswith(("plan", "for it"))}
    assert {name for name in modules if modules[name] == "equal"} | refused == set(modules)
    assert refused == {
        "SumsInPlace, checkpoint", "SumsInPlace, selective_checkpoint",
        "AddsInPlace, selective_checkpoint", "AddsAfter, selective_checkpoint",
    }  # fmt: skip


def test_random_numbers_are_kept_for_tensors_that_are_given_by_name(
    reruns: dict[str, Any],
) -> None:
    assert reruns["devices"] == ["cpu"]


def test_attention_is_fused_only_where_the_kernels_compute_the_same(
    reruns: dict[str, Any],
) -> None:
    results = reruns["attention"]
    assert results.pop("plain") == "equal"
    assert all("do not compute what" in result for result in results.values())


def test_every_technique_states_its_precondition() -> None:
    missing = [one.name for one in TECHNIQUES.values() if not (one.precondition and one.proof)]
    assert missing == []
