"""Techniques in real arithmetic on the CPU: what is the same is so bitwise, and all is undone.

Each case trains three steps under a technique and three after it was undone. Loss, gradients,
parameters, buffers and states of all six, and the generator after them, are those of the model as
it is; a technique that rounds says how far it is off.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.phantom

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = ROOT / "tests" / "programs" / "techniques"
BLOCKS = ["blocks.0", "blocks.1", "blocks.2"]
MOMENTUM = {"optimizer": "SGD", "optimizer_settings": {"momentum": 0.9}}

SAME: Mapping[str, dict[str, Any]] = {
    "free_gradients": {"technique": "free_gradients"},
    "free_gradients, zeroed late": {"technique": "free_gradients", "zero_late": True},
    "for_loop": {"technique": "optimizer_kernel", "settings": {"kernel": "for_loop"}},
    "for_loop SGD": {
        "technique": "optimizer_kernel", "settings": {"kernel": "for_loop"}, **MOMENTUM,
    },
    "optimizer_in_backward": {"technique": "optimizer_in_backward", "keeps_gradients": False},
    "optimizer_in_backward, images": {
        "technique": "optimizer_in_backward", "keeps_gradients": False, "model": "image",
    },
    "optimizer_offload": {"technique": "optimizer_offload"},
    "optimizer_offload by closure": {"technique": "optimizer_offload", "closure": True},
    "optimizer_offload SGD": {"technique": "optimizer_offload", **MOMENTUM},
    "optimizer_offload of a share": {
        "technique": "optimizer_offload", "settings": {"percent": 40},
    },
    "parameter_offload": {"technique": "parameter_offload", "modules": BLOCKS},
    "parameter_offload in another order": {
        "technique": "parameter_offload", "modules": ["blocks.1", "blocks.2", "blocks.0"],
    },
    "parameter_offload SGD": {
        "technique": "parameter_offload", "modules": BLOCKS, "settings": {"part_mib": 1},
        "scale": 2, **MOMENTUM,
    },
    "parameter_offload, clipped and checkpointed": {
        "technique": "parameter_offload", "modules": BLOCKS, "clip": "norm",
        "under": [{"technique": "checkpoint", "modules": BLOCKS}],
    },
    "parameter_offload images": {
        "technique": "parameter_offload", "model": "image",
        "modules": [f"features.{index}" for index in range(12)],
    },
    "offload": {
        "technique": "offload_activations", "modules": BLOCKS, "settings": {"least_kib": 0},
    },
    "offload large": {
        "technique": "offload_activations", "modules": BLOCKS, "settings": {"least_kib": 20},
    },
    "offload apart": {
        "technique": "offload_activations", "modules": ["blocks.1.mlp", "blocks.3"],
        "settings": {"least_kib": 0},
    },
    "offload images": {
        "technique": "offload_activations", "model": "image",
        "modules": [f"features.{index}" for index in range(12)], "settings": {"least_kib": 0},
    },
    "offload inputs of checkpoints": {
        "technique": "offload_activations", "modules": BLOCKS, "settings": {"least_kib": 0},
        "under": [{"technique": "checkpoint", "modules": BLOCKS}],
    },
    "segments images": {
        "technique": "checkpoint_segments", "model": "image", "modules": ["features"],
    },
    "segments images, uneven": {
        "technique": "checkpoint_segments", "model": "image", "modules": ["features"],
        "settings": {"lengths": "5,1,2,4"},
    },
    "checkpoint around selective": {
        "technique": "checkpoint", "modules": BLOCKS,
        "under": [{"technique": "selective_checkpoint", "modules": ["blocks.1.mlp"]}],
    },
    "selective matmul": {
        "technique": "selective_checkpoint", "modules": BLOCKS, "settings": {"saves": "matmul"},
    },
    "selective second_matmul": {
        "technique": "selective_checkpoint", "modules": BLOCKS,
        "settings": {"saves": "second_matmul"},
    },
    "selective by number": {
        "technique": "selective_checkpoint", "modules": BLOCKS, "settings": {"saves": "0,3,4"},
    },
    "selective images": {
        "technique": "selective_checkpoint", "modules": ["features"], "model": "image",
    },
}  # fmt: skip

# The largest relative difference of a loss: equal but for the order of sums, or rounded.
ROUNDED: Mapping[str, tuple[float, dict[str, Any]]] = {
    "fused": (1e-5, {"technique": "optimizer_kernel"}),
    "tiled_mlp": (1e-5, {"technique": "tiled_mlp", "modules": ["blocks.0.mlp", "blocks.1.mlp"]}),
    "flash_attention": (1e-5, {"technique": "flash_attention", "model": "llama"}),
    "chunked_loss": (
        1e-5,
        {"technique": "chunked_loss", "model": "llama", "settings": {"num_rows": 20}},
    ),
    "chunked_loss, plain": (
        1e-5,
        {"technique": "chunked_loss", "model": "plain", "settings": {"num_rows": 20}},
    ),
    "micro_batches": (1e-5, {"technique": "micro_batches", "dropout": 0.0}),
    "micro_batches, uneven": (
        1e-5,
        {"technique": "micro_batches", "model": "llama", "settings": {"num_parts": 3}},
    ),
    "micro_batches, labels left out": (
        1e-5,
        {"technique": "micro_batches", "model": "llama", "leaves_out": True},
    ),
    "micro_batches of logits": (
        1e-5,
        {"technique": "micro_batches", "model": "plain", "dropout": 0.0},
    ),
    "bf16_states": (1e-3, {"technique": "bf16_states"}),
    "autocast": (1e-3, {"technique": "autocast"}),
    "autocast llama": (1e-3, {"technique": "autocast", "model": "llama"}),
    "eight_bit_states": (1e-3, {"technique": "eight_bit_states", "scale": 2}),
    "four_bit_states": (1e-2, {"technique": "four_bit_states", "scale": 2}),
    "bf16_parameters": (1e-3, {"technique": "bf16_parameters"}),
    "bf16_parameters, masters": (
        1e-3,
        {"technique": "bf16_parameters", "settings": {"keeps": "masters"}},
    ),
    "bf16_parameters, images": (1e-2, {"technique": "bf16_parameters", "model": "image"}),
    "autocast_float16": (1e-3, {"technique": "autocast_float16"}),
    "autocast_float16, clipped": (1e-3, {"technique": "autocast_float16", "clip": "norm"}),
    "autocast_float16 of chunks": (
        1e-3,
        {
            "technique": "autocast_float16",
            "model": "llama",
            "under": [{"technique": "chunked_loss"}],
        },
    ),
}

# Another training, and whether its first loss is that of the model as it is.
OTHER: Mapping[str, tuple[bool, dict[str, Any]]] = {
    "lora": (True, {"technique": "lora"}),
    "lora, llama": (True, {"technique": "lora", "model": "llama"}),
    "lora in four bits": (False, {"technique": "lora", "settings": {"base": "nf4"}}),
    "shorter_sequence": (
        False, {"technique": "shorter_sequence", "model": "llama", "settings": {"percent": 75}},
    ),
}  # fmt: skip

REFUSED: Mapping[str, tuple[str, dict[str, Any]]] = {
    "clipped norm": ("clipped", {"technique": "optimizer_in_backward", "clip": "norm"}),
    "clipped value": ("clipped", {"technique": "optimizer_in_backward", "clip": "value"}),
    "accumulates": ("accumulate", {"technique": "optimizer_in_backward", "twice": True}),
    "scaled": ("GradScaler", {"technique": "optimizer_in_backward", "scaler": True}),
    "second steps": ("add up", {"technique": "free_gradients", "never_zero": True}),
    "LBFGS": ("LBFGS", {"technique": "optimizer_offload", "optimizer": "LBFGS"}),
    "LBFGS has one step": ("one step", {"technique": "optimizer_kernel", "optimizer": "LBFGS"}),
    "dropout in tiles": ("meet in 'bmm'", {"technique": "tiled_mlp", "modules": ["blocks.0"]}),
    "statistics in tiles": (
        "aten::convolution", {"technique": "tiled_mlp", "modules": ["features"], "model": "image"},
    ),
    "attention in tiles": (
        "meet in 'bmm'", {"technique": "tiled_mlp", "modules": ["blocks.0"], "dropout": 0.0},
    ),
    "segments of another length": (
        "whose sum is 12", {"technique": "checkpoint_segments", "model": "image",
        "modules": ["features"], "settings": {"lengths": "5,5"}},
    ),
    "segments of what is no chain": (
        "is a Block, not a", {"technique": "checkpoint_segments", "modules": ["blocks.0"]},
    ),
    "part of a part": (
        "is a part of",
        {"technique": "offload_activations", "modules": ["blocks.0", "blocks.0.mlp"]},
    ),
    "nothing written out": ("writes its attention out", {"technique": "flash_attention"}),
    "tiles within what keeps results": (
        "checkpointed selectively",
        {"technique": "selective_checkpoint", "modules": ["blocks.0"],
         "under": [{"technique": "tiled_mlp", "modules": ["blocks.0.mlp"]}]},
    ),
    "products that are not there": (
        "6 products, numbered from 0, and none with the number 6, 9",
        {"technique": "selective_checkpoint", "modules": BLOCKS, "settings": {"saves": "2,6,9"}},
    ),
    "no loss of a head": ("besides its loss", {"technique": "chunked_loss", "model": "image"}),
    "no DDP": ("DistributedDataParallel", {"technique": "bucket_view"}),
    "SGD in four bits": (
        "four_bit_states", {"technique": "four_bit_states", "optimizer": "SGD"},
    ),
    "LBFGS in bfloat16": ("LBFGS", {"technique": "bf16_parameters", "optimizer": "LBFGS"}),
    "no tokens": ("no tokens", {"technique": "shorter_sequence", "model": "image"}),
    "batches with statistics": ("statistics", {"technique": "micro_batches", "model": "image"}),
    "autocast twice": (
        "uses autocast itself", {"technique": "autocast", "under": [{"technique": "autocast"}]},
    ),
    "SGD in eight bits": (
        "eight_bit_states", {"technique": "eight_bit_states", "optimizer": "SGD"},
    ),
    "parameters within a checkpoint": (
        "within a checkpoint",
        {"technique": "checkpoint", "modules": BLOCKS,
         "under": [{"technique": "parameter_offload", "modules": BLOCKS}]},
    ),
    "parameters of a part of a part": (
        "is a part of",
        {"technique": "parameter_offload", "modules": ["blocks.0", "blocks.0.mlp"]},
    ),
    "changed in place": (
        "changed in place",
        {"technique": "offload_activations", "modules": BLOCKS, "settings": {"least_kib": 0},
         "spoils": True},
    ),
}  # fmt: skip


def run_program(python: Path, *command: str, timeout_s: int = 300) -> Any:
    """The last line of a program's output, which does not run on the phantom."""
    done = subprocess.run(
        [str(python), *command], env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def as_it_is(case: Mapping[str, Any]) -> dict[str, Any]:
    """The same case without a technique."""
    ours = {"technique", "modules", "settings", "under", "keeps_gradients", "closure"}
    return {"model": "text"} | {name: value for name, value in case.items() if name not in ours}


@pytest.fixture(scope="module")
def trained(thin_python: Path) -> Mapping[str, Any]:
    """What came of all cases and of their models as they are, by the text of the case."""
    wanted = [*SAME.values(), *(case for _, case in (*ROUNDED.values(), *OTHER.values()))]
    cases = [{"model": "text", **case} for case in wanted] + [*map(as_it_is, wanted)]
    cases += [{"model": "text", **case} for _, case in REFUSED.values()]
    texts = list(dict.fromkeys(json.dumps(case) for case in cases))
    found = run_program(thin_python, str(PROGRAMS / "alone.py"), "cpu", f"[{','.join(texts)}]")
    return dict(zip(texts, found, strict=True))


def outcomes(trained: Mapping[str, Any], case: Mapping[str, Any]) -> tuple[Any, Any]:
    """What came of a case, and of its model as it is."""
    return trained[json.dumps({"model": "text", **case})], trained[json.dumps(as_it_is(case))]


@pytest.mark.parametrize("name", SAME)
def test_the_same_mathematics_is_bitwise_the_same(trained: Mapping[str, Any], name: str) -> None:
    found, wanted = outcomes(trained, SAME[name])
    if not SAME[name].get("keeps_gradients", True):
        found, wanted = ({**one, "gradients": None} for one in (found, wanted))
    assert found == wanted
    assert found["keys_kept"] and found["left_over"] == []


@pytest.mark.parametrize("name", ROUNDED)
def test_what_rounds_stays_near_and_is_undone(trained: Mapping[str, Any], name: str) -> None:
    limit, case = ROUNDED[name]
    found, wanted = outcomes(trained, case)
    if " needs " in found.get("refused", ""):
        pytest.skip(found["refused"])
    assert found["parameters"] != wanted["parameters"]
    for ours, theirs in zip(found["losses"], wanted["losses"], strict=True):
        assert ours == pytest.approx(theirs, rel=limit)
    assert found["generator"] == wanted["generator"]
    assert found["keys_kept"] and found["left_over"] == []


@pytest.mark.parametrize("name", OTHER)
def test_another_training_draws_the_same_numbers_and_is_undone(
    trained: Mapping[str, Any], name: str
) -> None:
    begins_alike, case = OTHER[name]
    found, wanted = outcomes(trained, case)
    if " needs " in found.get("refused", ""):
        pytest.skip(found["refused"])
    alike = [ours == theirs for ours, theirs in zip(found["losses"], wanted["losses"], strict=True)]
    assert (alike[0], any(alike[1:])) == (begins_alike, False)
    assert found["generator"] == wanted["generator"] and found["left_over"] == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_go_together_is_refused(trained: Mapping[str, Any], name: str) -> None:
    reason, case = REFUSED[name]
    assert reason in trained[json.dumps({"model": "text", **case})]["refused"]


def test_offloading_is_bitwise_the_same_whenever_copies_come(thin_python: Path) -> None:
    (found,) = run_program(thin_python, str(PROGRAMS / "delays.py"), "100")
    assert (found["different"], found["lost"]) == (0, 0)


def test_offloaded_parameters_are_bitwise_the_same_whenever_copies_come(thin_python: Path) -> None:
    (found,) = run_program(thin_python, str(PROGRAMS / "delays.py"), "50", "--parameters")
    assert (found["different"], found["lost"]) == (0, 0)


@pytest.mark.nightly
@pytest.mark.parametrize("what", [[], ["--parameters"]], ids=["activations", "parameters"])
def test_offloading_is_bitwise_the_same_ten_thousand_times(
    thin_python: Path, what: list[str]
) -> None:
    (found,) = run_program(thin_python, str(PROGRAMS / "delays.py"), "10000", *what, timeout_s=3600)
    assert (found["different"], found["lost"]) == (0, 0)


@pytest.mark.parametrize("what", [[], ["--parameters"]], ids=["activations", "parameters"])
def test_a_copy_that_is_not_waited_for_is_noticed(thin_python: Path, what: list[str]) -> None:
    words = [*what, "10", "--without", "in", "out"]
    for found in run_program(thin_python, str(PROGRAMS / "delays.py"), *words):
        assert found["different"] > 0
