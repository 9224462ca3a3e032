"""A training loop of a model of transformers on several GPUs, in the manner of PyTorch's tutorials.

    ullage run --world-size 8 -- train_ranks.py config.json '{"length": 64, "layout": {"data": 8}}'

As train.py has it, with "layout": the fields of `ullage.players.eager.training.layout.Layout`.
"""

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from transformers.loss.loss_utils import ForCausalLMLoss

DTYPES = {"mixed-bf16": torch.float32, "fp32": torch.float32, "bf16": torch.bfloat16}
STEPS = 3
PLAN = {
    "self_attn.q_proj": ColwiseParallel(),
    "self_attn.k_proj": ColwiseParallel(),
    "self_attn.v_proj": ColwiseParallel(),
    "self_attn.o_proj": RowwiseParallel(),
    "mlp.gate_proj": ColwiseParallel(),
    "mlp.up_proj": ColwiseParallel(),
    "mlp.down_proj": RowwiseParallel(),
}


def build(path: str, recipe: dict[str, Any], *, device: str) -> Any:
    """The model, on a device or without memory ("meta")."""
    config = transformers.AutoConfig.from_pretrained(path)
    config.use_cache = False
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(
            config, dtype=DTYPES[recipe.get("precision", "bf16")]
        )


def fill(model: Any) -> Any:
    """Memory for a model that has none yet."""
    model.to_empty(device="cuda")
    model.init_weights()
    return model


def shard(model: Any, recipe: dict[str, Any], mesh: DeviceMesh) -> Any:
    """FSDP2: each layer a group, the rest another."""
    layout = recipe["layout"]
    how: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": layout["sharding"] == "fsdp"}
    if layout.get("offload"):
        how["offload_policy"] = CPUOffloadPolicy()
    if recipe.get("precision") == "mixed-bf16":
        how["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, **how)
    fully_shard(model, **(how | {"reshard_after_forward": None}))
    if layout.get("offload"):
        model.to_empty(device="cpu")
        return model
    return fill(model)


def spread(path: str, recipe: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model of this rank, and its optimizer."""
    layout = recipe["layout"]
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    if layout.get("tensor", 1) > 1:
        model = build(path, recipe, device="meta")
        for layer in model.model.layers:
            parallelize_module(layer, mesh, PLAN)
        parallelize_module(model, mesh, {"lm_head": ColwiseParallel(output_layouts=Replicate())})
        # One list cannot hold DTensors and tensors.
        return fill(model), torch.optim.AdamW(model.parameters(), foreach=False)
    sharding = layout.get("sharding", "ddp")
    if sharding in ("fsdp", "zero2"):
        model = shard(build(path, recipe, device="meta"), recipe, mesh)
        return model, torch.optim.AdamW(model.parameters())
    model = DistributedDataParallel(
        build(path, recipe, device="cuda"),
        gradient_as_bucket_view=layout.get("buckets") == "views",
    )
    if sharding == "zero1":
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    return model, torch.optim.AdamW(model.parameters())


class Stage(nn.Module):
    """The layers of one stage of a pipeline, with what comes before the first or after the last."""

    def __init__(self, whole: Any, config: Any, rank: int, ranks: int) -> None:
        super().__init__()
        self.embed_tokens = whole.model.embed_tokens if rank == 0 else None
        self.layers = whole.model.layers
        self.norm = whole.model.norm if rank == ranks - 1 else None
        self.lm_head = whole.lm_head if rank == ranks - 1 else None
        self.to_empty(device="cuda")
        with torch.device("cuda"):
            self.rotary = type(whole.model.rotary_emb)(config)

    def forward(self, x: Tensor) -> Tensor:
        """The stage's layers."""
        if self.embed_tokens is not None:
            x = self.embed_tokens(x)
        positions = torch.arange(x.shape[1], device="cuda").unsqueeze(0)
        tables = self.rotary(x, positions)
        for layer in self.layers:
            x = layer(x, position_embeddings=tables, position_ids=positions)
        return x if self.lm_head is None else self.lm_head(self.norm(x))


def train_stage(path: str, recipe: dict[str, Any]) -> None:
    """Three steps of a pipeline's stage."""
    layout, rank, ranks = recipe["layout"], dist.get_rank(), dist.get_world_size()
    config = transformers.AutoConfig.from_pretrained(path)
    layers, vocab = config.num_hidden_layers, config.vocab_size
    config.num_hidden_layers = layers // ranks + (rank < layers % ranks)
    with torch.device("meta"):
        whole = transformers.AutoModelForCausalLM.from_config(
            config, dtype=DTYPES[recipe.get("precision", "bf16")]
        )
    model = Stage(whole, config, rank, ranks).train()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[layout.get("schedule", "1f1b")](
        PipelineStage(model, rank, ranks, torch.device("cuda")),
        n_microbatches=layout["micro_batches"],
        loss_fn=lambda logits, labels: ForCausalLMLoss(logits, labels, vocab),
    )
    shape = (recipe.get("batch", 1) * layout["micro_batches"], recipe["length"])
    for _ in range(STEPS):
        tokens = torch.randint(0, vocab, shape, device="cuda")
        schedule.step(
            *([tokens] if rank == 0 else []), **({"target": tokens} if rank == ranks - 1 else {})
        )
        optimizer.step()
        counts = count(model, optimizer)
        optimizer.zero_grad()
    print(json.dumps(counts))


def train(path: str, recipe: dict[str, Any]) -> None:
    """Three steps of everything else."""
    model, optimizer = spread(path, recipe)
    if recipe.get("checkpointing") == "full":
        getattr(model, "module", model).gradient_checkpointing_enable()
    take_steps(model.train(), optimizer, recipe)


def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, recipe: dict[str, Any]) -> None:
    """Three steps of a model that takes its own loss; prints what this rank holds after them."""
    shape = (recipe.get("batch", 1), recipe["length"])
    for _ in range(STEPS):
        tokens = torch.randint(0, 1000, shape, device="cuda")
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        counts = count(model, optimizer)
        optimizer.zero_grad()
    print(json.dumps(counts))


def count(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes on this rank's GPU of parameters, of their gradients, and of the optimizer's states."""
    parameters = list(model.parameters())
    of_rank = getattr(optimizer, "optim", optimizer)  # ZeroRedundancyOptimizer's own part
    states = [one for state in of_rank.state.values() for one in state.values()]
    gradients = [one.grad for one in parameters if one.grad is not None]
    return {
        "parameters": sum(map(local_bytes, parameters)),
        "gradients": sum(map(local_bytes, gradients)),
        "optimizer_states": sum(map(local_bytes, states)),
    }


def local_bytes(value: Any) -> int:
    """What this rank's GPU holds of a tensor."""
    part = value.to_local() if isinstance(value, DTensor) else value
    return part.nbytes if part.is_cuda else 0


if __name__ == "__main__":
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl")
    told = json.loads(sys.argv[2])
    (train_stage if told["layout"].get("pipeline", 1) > 1 else train)(sys.argv[1], told)
