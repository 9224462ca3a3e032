"""What each technique saves on the phantom: the peak of what a step requests under it and without;
and offloads whose copies come late. That the training is the same is in test_same_training.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.alone import printed_by
from tests.phantom.conftest import RunProgram
from tests.phantom.same_training import BLOCKS, UNDER, Case, case

pytestmark = pytest.mark.phantom

WIDTH = 512
# The model: 4 blocks, an embedding of 512 tokens tied to the head, float32.
LARGE = {"scale": 8, "rows": 32}  # activations are the most of the peak
SMALL = {"scale": 8, "rows": 1}  # gradients, states and temporaries are
MIDDLE = {"scale": 8, "rows": 8}
WORDS = {"scale": 16}  # of a Llama with 2,048 tokens of 8,192: the logits are
LONG = {"scale": 16, "rows": 1}
GRADIENTS = 4 * (512 * WIDTH + 4 * 12 * WIDTH**2)  # but for norms and biases
STATES = 2 * GRADIENTS
MLPS = tuple(f"blocks.{index}.mlp" for index in range(4))


@dataclass(frozen=True, slots=True)
class Saving:
    """What a technique saves.

    Attributes:
        of: the case.
        peak: the most that is left of the peak, as a fraction.
        left: bytes that must be gone between steps; 0: none are to be more.
    """

    of: Case
    peak: float
    left: int = 0

    @property
    def before(self) -> dict[str, Any]:
        """The program as it is, as the harness reads it."""
        return {**self.of.document, "actions": []}

    def __str__(self) -> str:
        """As the name of a test."""
        return "-".join(
            str(part)
            for name, _, settings in self.of.actions
            for part in (name, *settings.values())
        )


SAVINGS = (
    # Of four blocks one stays, and one is computed again when the peak is.
    Saving(case("text", "checkpoint", BLOCKS, options=LARGE), 0.5),
    Saving(case("text", "selective_checkpoint", BLOCKS, options=LARGE), 0.9),
    Saving(case("text", "selective_checkpoint", BLOCKS, options=LARGE, saves="attention"), 0.75),
    Saving(case("text", "selective_checkpoint", BLOCKS, options=LARGE, saves="second_matmul"), 0.8),
    # One stays, and one is on its way back.
    Saving(case("text", "offload_activations", BLOCKS, options=LARGE), 0.7),
    Saving(case("text", "offload_activations", BLOCKS, options=LARGE, under=UNDER), 0.5),
    # Of parameters and gradients of four blocks, the parameters.
    Saving(
        case("text", "parameter_offload", (*BLOCKS, "blocks.3"), options=SMALL, part_mib=4),
        0.85,
        GRADIENTS * 9 // 10,
    ),
    Saving(case("text", "tiled_mlp", MLPS, options=LARGE), 0.8),
    Saving(case("small_llama", "chunked_loss", options=WORDS), 0.6),
    # The weights of attention, 4 heads x 512 x 512, and what softmax makes of them, of two layers.
    Saving(case("small_llama", "flash_attention", options=LONG), 0.95),
    Saving(case("text", "micro_batches", options=LARGE, num_parts=4), 0.5),
    Saving(case("plain", "micro_batches", options=LARGE, num_parts=4), 0.5),
    Saving(case("text", "shorter_sequence", options=LARGE), 0.6),
    Saving(case("text", "autocast", options=LARGE), 0.8),
    Saving(case("text", "autocast_float16", options=LARGE), 0.8),
    Saving(
        case("text", "free_gradients", options=MIDDLE, way="zeroed_late_by_the_optimizer"),
        0.95,
        GRADIENTS,
    ),
    # What is left at the peak: the temporaries of one parameter's step in place of all.
    Saving(case("text", "optimizer_in_backward", options=SMALL), 0.91, GRADIENTS * 9 // 10),
    # Counts of steps are on the GPU now.
    Saving(case("text", "optimizer_kernel", options=SMALL), 0.96, -4 * 49),
    Saving(case("text", "optimizer_kernel", options=SMALL, kernel="for_loop"), 0.96),
    Saving(case("text", "optimizer_offload", options=SMALL, part_mib=4), 0.65, STATES),
    Saving(case("text", "bf16_states", options=SMALL, part_mib=4), 0.8, STATES * 45 // 100),
    Saving(case("text", "eight_bit_states", options=SMALL), 0.8, STATES * 70 // 100),
    Saving(case("text", "four_bit_states", options=SMALL, part_mib=4), 0.8, STATES * 80 // 100),
    # Half of the parameters, and of the gradients.
    Saving(case("text", "bf16_parameters", options=SMALL, part_mib=4), 0.8, GRADIENTS * 95 // 100),
    Saving(case("text", "bf16_parameters", options=SMALL, part_mib=4, keeps="masters"), 0.95),
    # Gradients and states of all that adapters are beside.
    Saving(case("text", "lora", options=SMALL), 0.6, (GRADIENTS + STATES) * 80 // 100),
    Saving(
        case("text", "lora", options=SMALL, base="nf4"), 0.5, (2 * GRADIENTS + STATES) * 80 // 100
    ),
)


@pytest.fixture(scope="module")
def measured(run_program: RunProgram) -> Mapping[str, Any]:
    """Peaks of all cases and of the programs as they are, by the text of the case."""
    documents = [one for saving in SAVINGS for one in (saving.of.document, saving.before)]
    texts = list(dict.fromkeys(map(json.dumps, documents)))
    words = ("plans/same_training.py", "cuda", f"[{','.join(texts)}]")
    outcome = run_program(*words, timeout_s=400)
    assert outcome.exit_code == 0, outcome.stderr
    return dict(zip(texts, outcome.printed, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("saving", SAVINGS, ids=str)
def test_a_technique_saves_what_it_says(measured: Mapping[str, Any], saving: Saving) -> None:
    found, before = measured[json.dumps(saving.of.document)], measured[json.dumps(saving.before)]
    if " needs " in found.get("refused", ""):
        pytest.skip(found["refused"])
    assert found["peak_bytes"] <= saving.peak * before["peak_bytes"]
    assert before["kept_bytes"] - found["kept_bytes"] >= saving.left
    assert found["left over"] == []


WHAT = pytest.mark.parametrize("what", [[], ["--parameters"]], ids=["activations", "parameters"])


@WHAT
def test_offloading_is_bitwise_the_same_whenever_copies_come(
    thin_python: Path, what: list[str]
) -> None:
    (found,) = printed_by(thin_python, "plans/delays.py", "50", *what)
    assert (found["different"], found["lost"]) == (0, 0)


@pytest.mark.nightly
@WHAT
def test_offloading_is_bitwise_the_same_ten_thousand_times(
    thin_python: Path, what: list[str]
) -> None:
    (found,) = printed_by(thin_python, "plans/delays.py", "10000", *what, timeout_s=3600)
    assert (found["different"], found["lost"]) == (0, 0)


@WHAT
def test_a_copy_that_is_not_waited_for_is_noticed(thin_python: Path, what: list[str]) -> None:
    for found in printed_by(thin_python, "plans/delays.py", *what, "10", "--without", "in", "out"):
        assert found["different"] > 0
