"""A training loop with sequence or context parallelism, in the manner of PyTorch's tutorials.

    ullage run --world-size 8 -- train_sequence.py config.json '{"length": 64, "layout": {...}}'

As train_ranks.py has it, with "sequence" (of the ranks of "tensor") or "context" in "layout".
"""

import contextlib
import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from train_ranks import STEPS, build, count, fill
from transformers.loss.loss_utils import ForCausalLMLoss

SEQUENCE = Shard(1)
PLAN = {
    "input_layernorm": SequenceParallel(),
    "self_attn": PrepareModuleInput(
        input_kwarg_layouts={"hidden_states": SEQUENCE},
        desired_input_kwarg_layouts={"hidden_states": Replicate()},
    ),
    "self_attn.q_proj": ColwiseParallel(),
    "self_attn.k_proj": ColwiseParallel(),
    "self_attn.v_proj": ColwiseParallel(),
    "self_attn.o_proj": RowwiseParallel(output_layouts=SEQUENCE),
    "post_attention_layernorm": SequenceParallel(),
    "mlp": PrepareModuleInput(input_layouts=SEQUENCE, desired_input_layouts=Replicate()),
    "mlp.gate_proj": ColwiseParallel(),
    "mlp.up_proj": ColwiseParallel(),
    "mlp.down_proj": RowwiseParallel(output_layouts=SEQUENCE),
}
ENDS = {
    "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=SEQUENCE),
    "model.norm": SequenceParallel(),
    "lm_head": ColwiseParallel(input_layouts=SEQUENCE, output_layouts=Replicate()),
}


class Decoder(nn.Module):
    """A decoder of transformers, layer by layer, so that it is told where its tokens stand."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """The loss."""
        inner = self.whole.model
        x = inner.embed_tokens(tokens)
        tables = inner.rotary_emb(x, positions)
        for layer in inner.layers:
            x = layer(x, attention_mask=None, position_embeddings=tables, position_ids=positions)
        logits = self.whole.lm_head(inner.norm(x))
        return ForCausalLMLoss(logits, tokens, self.whole.config.vocab_size)


def divide(model: Any, mesh: DeviceMesh) -> None:
    """Tensor parallelism, with norms and residuals divided along the sequence."""
    for layer in model.model.layers:
        parallelize_module(layer, mesh, PLAN)
    parallelize_module(model, mesh, ENDS)


def spread(whole: Any, layout: dict[str, Any], mesh: DeviceMesh) -> nn.Module:
    """The model of this rank: divided, sharded, or all of it."""
    if layout.get("sequence"):
        divide(whole, mesh["layers"])
    if layout.get("sharding") == "fsdp":
        for layer in whole.model.layers:
            fully_shard(layer, mesh=mesh["parts"])
        return fully_shard(Decoder(fill(whole)), mesh=mesh["parts"])
    model = Decoder(fill(whole))
    return model if layout.get("context", 1) == 1 else DistributedDataParallel(model)


def train(path: str, recipe: dict[str, Any]) -> None:
    """Three steps."""
    layout = recipe["layout"]
    ranks = layout.get("tensor", 1)
    sizes = (dist.get_world_size() // ranks, ranks)
    mesh = init_device_mesh("cuda", sizes, mesh_dim_names=("parts", "layers"))
    whole = build(path, recipe, device="meta")
    model = spread(whole, layout, mesh).train()
    optimizer = torch.optim.AdamW(model.parameters())
    if recipe.get("checkpointing") == "full":
        whole.gradient_checkpointing_enable()
    for _ in range(STEPS):
        tokens = torch.randint(0, 1000, (recipe.get("batch", 1), recipe["length"]), device="cuda")
        positions = torch.arange(recipe["length"], device="cuda").unsqueeze(0)
        with divided(layout, mesh["parts"], [tokens, positions]):
            loss = model(tokens, positions)
            loss.backward()
        optimizer.step()
        counts = count(model, optimizer)
        optimizer.zero_grad()
    print(json.dumps(counts))


@contextlib.contextmanager
def divided(layout: dict[str, Any], mesh: DeviceMesh, buffers: list[Tensor]) -> Any:
    """Context parallelism where it is asked for: each rank has its part of the sequence."""
    if layout.get("context", 1) == 1:
        yield
        return
    with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1] * len(buffers)):
        yield


if __name__ == "__main__":
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl")
    train(sys.argv[1], json.loads(sys.argv[2]))
