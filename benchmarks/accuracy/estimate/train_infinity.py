"""A training loop under DeepSpeed's ZeRO-3, with parameters and states in host memory.

    ullage run --world-size 8 -- train_infinity.py config.json '{"length": 64}'

As train.py has it. To a disk they would go from there; the GPU sees no difference.
"""

import json
import os
import sys
from typing import Any

import deepspeed
import torch
import transformers

STEPS = 3
AWAY = {"device": "cpu"}


def train(path: str, recipe: dict[str, Any]) -> None:
    """Three steps."""
    config = transformers.AutoConfig.from_pretrained(path)
    config.use_cache = False
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if recipe.get("checkpointing") == "full":
        model.gradient_checkpointing_enable()
    batch = recipe.get("batch", 1)
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": batch,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {"stage": 3, "offload_optimizer": AWAY, "offload_param": AWAY},
        },
    )
    engine.train()
    for _ in range(STEPS):
        tokens = torch.randint(0, 1000, (batch, recipe["length"]), device="cuda")
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()


if __name__ == "__main__":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    train(sys.argv[1], json.loads(sys.argv[2]))
