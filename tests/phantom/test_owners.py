"""Who owns the memory: what a program says of itself, and nearly all bytes of real examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ullage.log.blocks import find_blocks, read_blocks
from ullage.log.category import Category
from ullage.log.record_schema import PRECISIONS

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

MIB = 2**20
EXAMPLES = {
    "gpt2": ("gpt2/train.py",),
    "llama_trainer": ("llama_trainer/train.py", "--seq-len", "256"),
    "resnet50": ("resnet50/train.py",),
}
NUM_PARAMETERS = {"gpt2": 124_475_904, "llama_trainer": 1_235_814_400, "resnet50": 25_557_032}
PARAMETER_ITEMSIZE = {"gpt2": 4, "llama_trainer": 2, "resnet50": 4}
# AdamW keeps two numbers a parameter, SGD with momentum one.
STATES = {"gpt2": 2, "llama_trainer": 2, "resnet50": 1}


@pytest.mark.slow(but=("gpt2",))
@pytest.mark.parametrize("name", EXAMPLES)
def test_at_least_95_percent_of_an_examples_peak_have_an_owner(
    run_program: RunProgram, name: str
) -> None:
    outcome = run_program(*EXAMPLES[name])
    assert outcome.exit_code == 0
    device = outcome.device
    for owners in (device["at_peak"], device["ledger"]["owners"]):
        assert owners["unattributed"] <= 0.05 * sum(owners.values())


@pytest.mark.slow(but=("gpt2",))
@pytest.mark.parametrize("name", EXAMPLES)
def test_parameters_and_optimizer_states_of_an_example_have_the_size_of_its_model(
    run_program: RunProgram, name: str
) -> None:
    at_peak = run_program(*EXAMPLES[name]).device["at_peak"]
    num_bytes = NUM_PARAMETERS[name] * PARAMETER_ITEMSIZE[name]
    # Rounded up per tensor, at most to the next 2 MiB where a block was not worth splitting.
    assert num_bytes <= at_peak["parameter"] <= 1.02 * num_bytes + 16 * MIB
    states = STATES[name] * num_bytes
    assert states <= at_peak["optimizer_state"] <= 1.02 * states + 32 * MIB


@pytest.mark.parametrize("name", ["gpt2", "resnet50"])
def test_what_forward_keeps_for_backward_is_the_largest_part_of_an_example(
    run_program: RunProgram, name: str
) -> None:
    at_peak = run_program(*EXAMPLES[name]).device["at_peak"]
    assert max(at_peak, key=at_peak.get) == "activation"
    assert at_peak["input"] > 0


def test_owners_are_to_the_byte_what_the_program_says_of_itself(run_program: RunProgram) -> None:
    outcome = run_program("owners.py")
    said, at_peak = outcome.printed, outcome.device["at_peak"]
    assert {name: at_peak[name] for name in said["owned"]} == said["owned"]


def test_states_that_are_made_anew_in_each_step_are_the_optimizers(run_program: RunProgram) -> None:
    at_peak = run_program("new_states.py").device["at_peak"]
    assert at_peak["optimizer_state"] == at_peak["parameter"] == 4 * 4 * 1024 * 1024


def test_the_rounding_of_blocks_belongs_to_their_owner(run_program: RunProgram) -> None:
    said = run_program("owners.py").printed
    for name, num_bytes in said["exact"].items():
        assert num_bytes <= said["owned"][name] < num_bytes + 2 * MIB


def test_the_largest_block_that_nobody_claims_is_not_given_to_an_owner(
    run_program: RunProgram,
) -> None:
    outcome = run_program("owners.py")
    at_peak, largest = outcome.device["at_peak"], outcome.printed["largest"]
    rest = sum(at_peak.values()) - largest
    assert at_peak["unattributed"] >= largest
    assert at_peak["unattributed"] - largest < 0.05 * rest


def test_parameters_carry_their_names(run_program: RunProgram) -> None:
    claims = run_program("owners.py").record.claims
    named = {
        name
        for name, category in zip(claims.name, claims.category, strict=True)
        if category.value == "parameter"
    }
    assert named >= {"first.weight", "first.bias", "norm.weight", "second.weight"}


def test_what_has_an_owner_has_the_type_of_its_numbers(run_program: RunProgram) -> None:
    record = run_program("owners.py").record
    claims, blocks, codes = record.claims, read_blocks(record), record.events.precision
    assert codes is not None
    rows = find_blocks(blocks, claims.position, claims.device, claims.address)
    of = {(category, PRECISIONS[codes[blocks.birth[row]]])
          for row, category in zip(rows, claims.category, strict=True)}  # fmt: skip
    tracked = {(Category.BUFFER, "int64")}  # num_batches_tracked
    assert {precision for _, precision in of - tracked} == {"float32"}
    assert {category for category, _ in of} >= {
        Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.BUFFER,
    }  # fmt: skip
    assert tracked <= of and "float32" in {PRECISIONS[code] for code in codes}
    # The largest block has no owner, so nothing is known of it.
    assert PRECISIONS[codes[record.events.size_bytes.argmax()]] == ""


@pytest.mark.slow
def test_the_cache_of_a_generation_is_that_of_its_prompt_at_the_peak(
    run_program: RunProgram,
) -> None:
    at_peak = run_program("generate_kv.py").device["at_peak"]
    # Two prompts of 64 tokens; keys and values of 4 layers with 2 heads of 32 numbers, in bfloat16.
    assert at_peak["kv_cache"] == 2 * 64 * 2 * 4 * 2 * 32 * 2


def test_each_step_has_phases_within_its_peak(run_program: RunProgram) -> None:
    steps = run_program(*EXAMPLES["gpt2"]).device["steps"]
    assert len(steps) == 3
    for step in steps:
        assert set(step["phases"]) == {"forward", "backward", "optimizer"}
        peaks = [phase["peak_allocated_bytes"] for phase in step["phases"].values()]
        assert 0 < max(peaks) <= step["peak_allocated_bytes"]


@pytest.mark.parametrize(
    "how",
    [
        "cloned",
        pytest.param("named", marks=pytest.mark.nightly),
        pytest.param("deepcopied", marks=pytest.mark.nightly),
        pytest.param("averaged_model", marks=pytest.mark.nightly),
    ],
)
def test_averages_of_the_weights_are_no_inputs(run_program: RunProgram, how: str) -> None:
    outcome = run_program("averaged.py", how)
    at_peak, averages = outcome.device["at_peak"], outcome.printed["bytes"]
    assert at_peak["input"] == 4096 * 1024 * 4
    # Blocks of 4 MiB are whole; the small ones are rounded.
    assert 2 * averages <= at_peak["parameter"] + at_peak["buffer"] <= 2.01 * averages


def test_lists_of_gradients_and_states_are_no_averages(run_program: RunProgram) -> None:
    at_peak = run_program("kept_lists.py").device["at_peak"]
    assert at_peak["buffer"] == 0
    assert at_peak["gradient"] == at_peak["parameter"]
    assert at_peak["optimizer_state"] >= 2 * at_peak["parameter"]
