"""Models that are larger than this machine: built, converted, loaded, made up, and moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

PROGRAM = "large_models.py"
DUMMY = ("--dummy-weights",)
REAL = ("[run] real_init = true",)
GIB = 2**30
NUMBERS_7B = 6_738_415_616


def run_large(run_program: RunProgram, *words: str, options: tuple[str, ...] = ()) -> Any:
    """A run on a device that holds such a model, and that every supported torch has code for."""
    return run_program(PROGRAM, *words, gpu="h200", options=options)


@pytest.mark.slow(but=("zeros-4",))
@pytest.mark.parametrize(
    ("how", "size"),
    [
        ("plain", 4),
        ("bfloat16", 2),
        pytest.param("half", 2, marks=pytest.mark.nightly),
        ("zeros", 4),
        ("hugging_face", 4),
        ("loaded", 4),
    ],
)
def test_a_model_of_7b_parameters_takes_little_memory_here(
    run_program: RunProgram, how: str, size: int
) -> None:
    outcome = run_large(run_program, "build", "7b", how)
    assert outcome.exit_code == 0, outcome.stderr
    said = outcome.printed
    assert said["numbers"] == NUMBERS_7B
    assert size * NUMBERS_7B <= said["allocated"] < size * NUMBERS_7B + GIB // 8
    assert outcome.document["host_peak_bytes"] < 2 * GIB
    assert outcome.document["host_needed_bytes"] > 0.95 * size * NUMBERS_7B


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["plain", "bfloat16", "hugging_face"])
def test_a_model_of_70b_parameters_takes_less_than_8_gib_here(
    run_program: RunProgram, how: str
) -> None:
    outcome = run_program(PROGRAM, "build", "70b", how, options=("--memory", "1TiB"))
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.printed["numbers"] > 70e9
    assert outcome.document["host_peak_bytes"] < 2 * GIB


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "dtype", "size"),
    [
        ((), "torch.bfloat16", 2),
        pytest.param(("index",), "torch.bfloat16", 2, marks=pytest.mark.nightly),
        pytest.param(("device_map=auto",), "torch.bfloat16", 2, marks=pytest.mark.nightly),
        pytest.param(("dtype=float32",), "torch.float32", 4, marks=pytest.mark.nightly),
        (("dtype=float32", "device_map=cuda"), "torch.float32", 4),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_weights_that_are_not_there_are_made_up(
    run_program: RunProgram, words: tuple[str, ...], dtype: str, size: int
) -> None:
    outcome = run_large(run_program, "load", "7b", *words, options=DUMMY)
    assert outcome.exit_code == 0, outcome.stderr
    said, document = outcome.printed, outcome.document
    assert said["numbers"] == NUMBERS_7B
    assert size * NUMBERS_7B <= said["allocated"] < size * NUMBERS_7B + GIB // 8
    assert (said["dtype"], said["device"], said["name"]) == (dtype, "cuda:0", "model")
    assert document["host_peak_bytes"] < 2 * GIB
    (warning,) = [text for text in document["warnings"] if "made up" in text]
    assert f"{2 * NUMBERS_7B:,} bytes" in warning


@pytest.mark.nightly
def test_made_up_weights_of_70b_parameters_take_no_memory_here(run_program: RunProgram) -> None:
    options = (*DUMMY, "--memory", "1TiB")
    outcome = run_program(PROGRAM, "load", "70b", "device_map=auto", options=options)
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.printed["allocated"] > 141e9
    assert outcome.document["host_peak_bytes"] < 2 * GIB


@pytest.mark.slow
def test_a_model_that_is_sharded_takes_no_memory_here(run_program: RunProgram) -> None:
    options = ("--world-size", "64", "--rank", "0")
    outcome = run_large(run_program, "shard", "7b", options=options)
    assert outcome.exit_code == 0, outcome.stderr
    assert 4 * NUMBERS_7B / 64 <= outcome.printed["allocated"] < 4 * NUMBERS_7B / 60
    assert outcome.document["host_peak_bytes"] < 2 * GIB


@pytest.mark.slow
def test_without_being_told_nothing_is_made_up(run_program: RunProgram) -> None:
    outcome = run_large(run_program, "load", "tiny")
    assert outcome.exit_code == 3
    assert "safetensors" in outcome.stderr, "transformers' own error"


@pytest.mark.slow
def test_weights_that_are_there_are_loaded_as_they_are(run_program: RunProgram) -> None:
    outcome = run_large(run_program, "there", "tiny", options=DUMMY)
    assert outcome.exit_code == 0, outcome.stderr
    assert len(outcome.printed) > 10
    assert all(outcome.printed)
    assert not any("made up" in text for text in outcome.document["warnings"])


def test_what_is_read_is_right_in_every_thread_and_through_every_copy(
    run_program: RunProgram,
) -> None:
    found = run_program(PROGRAM, "threads", "tiny").printed
    assert len(found) > 10
    assert found == run_program(PROGRAM, "threads", "tiny", options=REAL).printed
