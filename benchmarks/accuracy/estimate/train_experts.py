"""A training loop of a mixture of experts whose experts are divided among ranks that each have
their own samples: transformers' expert parallelism, everything else sharded by FSDP2.

    ullage run --world-size 8 -- train_experts.py config.json '{"length": 64, "layout": {...}}'

As train_ranks.py has it, with "expert" in "layout".
"""

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from train_ranks import build, fill, take_steps
from transformers.distributed.expert_parallel import apply_expert_parallelism


def spread(path: str, recipe: dict[str, Any]) -> Any:
    """The model of this rank: some experts, of which ranks with the same ones share the parts."""
    layout = recipe["layout"]
    ranks, of_experts = dist.get_world_size(), layout["expert"]
    model = build(path, recipe, device="meta")
    mesh = init_device_mesh("cuda", (ranks,))
    apart = init_device_mesh(
        "cuda", (ranks // of_experts, of_experts, 1), mesh_dim_names=("copies", "experts", "alone")
    )
    plan = {
        f"model.layers.{number}.{name.removeprefix('layers.*.')}": style
        for number in range(model.config.num_hidden_layers)
        for name, style in model.config.base_model_ep_plan.items()
    }
    apply_expert_parallelism(model, apart["experts"], apart["alone"], plan, "all_to_all")
    how = {"reshard_after_forward": layout["sharding"] == "fsdp"}
    for layer in model.model.layers:
        fully_shard(layer.mlp.experts, mesh=apart["copies"], **how)
        fully_shard(layer, mesh=mesh, **how)
    return fill(fully_shard(model, mesh=mesh))


def train(path: str, recipe: dict[str, Any]) -> None:
    """Three steps."""
    model = spread(path, recipe).train()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)  # parameters of two meshes
    if recipe.get("checkpointing") == "full":
        model.gradient_checkpointing_enable()
    take_steps(model, optimizer, recipe)


if __name__ == "__main__":
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl")
    train(sys.argv[1], json.loads(sys.argv[2]))
