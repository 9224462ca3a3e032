"""What each technique saves on the phantom: the peak of what a step requests under it and without.

Both are of one run: a case is trained under the technique, and a model as it is beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

WIDTH = 512
# The model: 4 blocks, an embedding of 512 tokens tied to the head, float32.
LARGE = {"model": "text", "scale": 8, "rows": 32}  # activations are the most of the peak
SMALL = {"model": "text", "scale": 8, "rows": 1}  # gradients, states and temporaries are
WORDS = {"model": "llama", "scale": 16}  # 2,048 tokens of 8,192: the logits are
PLAIN = {"model": "plain", "scale": 8, "rows": 32}  # the program takes the loss
LONG = {"model": "llama", "scale": 16, "rows": 1}
LATE = {"model": "text", "scale": 8, "rows": 8, "zero_late": True}
GRADIENTS = 4 * (512 * WIDTH + 4 * 12 * WIDTH**2)  # but for norms and biases
STATES = 2 * GRADIENTS
BLOCKS = ("blocks.0", "blocks.1", "blocks.2")  # of four


@dataclass(frozen=True, slots=True)
class Case:
    """A technique on a model.

    Attributes:
        peak: the most that is left of the peak, as a fraction.
        left: bytes that must be gone between steps; 0: none are to be more.
    """

    technique: str
    of: Mapping[str, Any]
    peak: float
    left: int = 0
    modules: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()
    under: tuple[str, ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        """The case as the program reads it."""
        under = [{"technique": one, "modules": self.modules} for one in self.under]
        return {
            **self.of, "technique": self.technique, "modules": self.modules,
            "settings": dict(self.settings), "under": under,
        }  # fmt: skip


PARTS = (("part_mib", 4),)
MLPS = tuple(f"blocks.{index}.mlp" for index in range(4))
CASES = (
    # Of four blocks one stays, and one is computed again when the peak is.
    Case("checkpoint", LARGE, 0.5, modules=BLOCKS),
    Case("selective_checkpoint", LARGE, 0.9, modules=BLOCKS),
    Case("selective_checkpoint", LARGE, 0.75, modules=BLOCKS, settings=(("saves", "attention"),)),
    Case(
        "selective_checkpoint", LARGE, 0.8, modules=BLOCKS, settings=(("saves", "second_matmul"),)
    ),
    # One stays, and one is on its way back.
    Case("offload_activations", LARGE, 0.7, modules=BLOCKS),
    Case("offload_activations", LARGE, 0.5, modules=BLOCKS, under=("checkpoint",)),
    # Of parameters and gradients of four blocks, the parameters.
    Case(
        "parameter_offload",
        SMALL,
        0.75,
        GRADIENTS * 9 // 10,
        (*BLOCKS, "blocks.3"),
        PARTS,
    ),
    Case("tiled_mlp", LARGE, 0.8, modules=MLPS),
    Case("chunked_loss", WORDS, 0.6),
    # The weights of attention, 4 heads x 512 x 512, and what softmax makes of them, of two layers.
    Case("flash_attention", LONG, 0.95),
    Case("micro_batches", LARGE, 0.5, settings=(("num_parts", 4),)),
    Case("micro_batches", PLAIN, 0.5, settings=(("num_parts", 4),)),
    Case("shorter_sequence", LARGE, 0.6),
    Case("autocast", LARGE, 0.8),
    Case("autocast_float16", LARGE, 0.8),
    Case("free_gradients", LATE, 0.95, GRADIENTS),
    # What is left at the peak: the temporaries of one parameter's step in place of all.
    Case("optimizer_in_backward", SMALL, 0.8, GRADIENTS * 9 // 10),
    Case("optimizer_kernel", SMALL, 0.9, -4 * 49),  # counts of steps are on the GPU now
    Case("optimizer_kernel", SMALL, 0.9, settings=(("kernel", "for_loop"),)),
    Case("optimizer_offload", SMALL, 0.65, STATES, settings=PARTS),
    Case("bf16_states", SMALL, 0.8, STATES * 45 // 100, settings=PARTS),
    Case("eight_bit_states", SMALL, 0.8, STATES * 70 // 100),
    Case("four_bit_states", SMALL, 0.8, STATES * 80 // 100, settings=PARTS),
    # Half of the parameters, and of the gradients.
    Case("bf16_parameters", SMALL, 0.8, GRADIENTS * 95 // 100, settings=PARTS),
    Case("bf16_parameters", SMALL, 0.9, settings=(*PARTS, ("keeps", "masters"))),
    # Gradients and states of all that adapters are beside.
    Case("lora", SMALL, 0.6, (GRADIENTS + STATES) * 80 // 100),
    Case("lora", SMALL, 0.5, (2 * GRADIENTS + STATES) * 80 // 100, settings=(("base", "nf4"),)),
)


def name_of(case: Case) -> str:
    """What a case is called."""
    return "-".join(map(str, (case.technique, *(value for _, value in case.settings), *case.under)))


@pytest.fixture(scope="module")
def measured(run_program: RunProgram) -> Mapping[str, Any]:
    """Peaks of all cases and of the models as they are, by the text of the case."""
    cases = [json.dumps(case) for case in (LARGE, SMALL, LATE, WORDS, LONG, PLAIN)]
    cases += [json.dumps(case.document) for case in CASES]
    outcome = run_program("techniques/alone.py", "cuda", f"[{','.join(cases)}]", timeout_s=400)
    assert outcome.exit_code == 0, outcome.stderr
    return dict(zip(cases, outcome.printed, strict=True))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_technique_saves_what_it_says(measured: Mapping[str, Any], case: Case) -> None:
    found, before = measured[json.dumps(case.document)], measured[json.dumps(case.of)]
    if " needs " in found.get("refused", ""):
        pytest.skip(found["refused"])
    assert found["peak_bytes"] <= case.peak * before["peak_bytes"]
    assert before["kept_bytes"] - found["kept_bytes"] >= case.left
    assert found["left_over"] == []
