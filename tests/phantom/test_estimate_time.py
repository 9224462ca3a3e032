"""`ullage estimate --time` against `ullage run --time` of the same step, in small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ullage
from ullage.facts.families.config import read_config
from ullage.facts.gpus import find_gpu
from ullage.players.eager.time.training import time_training
from ullage.players.eager.training.recipe import Recipe

pytestmark = pytest.mark.phantom

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "accuracy" / "estimate" / "train.py"
CONFIGS = {
    "llama": {
        "model_type": "llama", "vocab_size": 8192, "hidden_size": 1024, "num_hidden_layers": 4,
        "intermediate_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 4,
        "max_position_embeddings": 4096,
    },
    "gpt2": {
        "model_type": "gpt2", "vocab_size": 8192, "n_embd": 1024, "n_layer": 4, "n_head": 16,
        "n_positions": 1024,
    },
}  # fmt: skip
# On one GPU the benchmark has 0.99 to 1.00 (docs/results/time.md).
BOUNDS = 0.85, 1.15


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("model", CONFIGS)
def test_the_estimate_is_near_the_run(
    model: str, checkpointing: str, thin_python: Path, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS[model]))
    fields = {"batch": 4, "length": 1024, "checkpointing": checkpointing}
    result = ullage.run(
        [str(PROGRAM), str(path), json.dumps(fields)],
        gpu="h100-80gb", python=thin_python, time=True,
    )  # fmt: skip
    assert result.time is not None
    time = time_training(
        read_config(path), Recipe(batch=4, length=1024, checkpointing=checkpointing),
        find_gpu("h100-80gb"),
    )  # fmt: skip
    least, most = BOUNDS
    assert least < time.step.s / result.time.step.s < most
    counts = [{kind.name: kind.num for kind in each.categories} for each in (time, result.time)]
    assert counts[0]["matrix products"] == counts[1]["matrix products"]
    for name in ("memory-bound kernels", "matrix products", "attention"):
        busy = [
            next(kind.busy.s for kind in each.categories if kind.name == name)
            for each in (time, result.time)
        ]
        assert 0.8 < busy[0] / busy[1] < 1.25
