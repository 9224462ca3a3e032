"""Training loops on several GPUs, of which one rank is played."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.accuracy.estimate.case import Case
from ullage.facts.families.builtin import find_model
from ullage.players.eager.training.layout import Layout
from ullage.players.eager.training.recipe import Recipe

# (name, model, ranks, the rank that is played, layout, other fields of the recipe)
_ROWS: Final[tuple[tuple[str, str, int, int, Layout, dict[str, Any]], ...]] = (
    ("DDP", "smollm2-135m", 8, 0, Layout(data=8), {"batch": 4, "length": 1024}),
    ("ZeRO-1", "tinyllama-1.1b", 8, 0, Layout(data=8, sharding="zero1"),
     {"batch": 1, "length": 2048}),
    ("ZeRO-2", "tinyllama-1.1b", 4, 0, Layout(data=4, sharding="zero2"),
     {"batch": 2, "length": 1024}),
    ("FSDP2", "llama-3.1-8b", 8, 0, Layout(data=8, sharding="fsdp"),
     {"length": 4096, "checkpointing": "full"}),
    ("FSDP2, bf16 with fp32 shards", "llama-3.2-1b", 8, 0, Layout(data=8, sharding="fsdp"),
     {"length": 4096, "precision": "mixed-bf16"}),
    ("DDP, gradients in buckets", "smollm2-135m", 4, 0, Layout(data=4, buckets="views"),
     {"batch": 4, "length": 1024}),
    ("FSDP2 on 64", "llama-3.1-70b", 64, 0, Layout(data=64, sharding="fsdp"),
     {"length": 4096, "checkpointing": "full"}),
    ("FSDP2 offloaded", "llama-2-7b", 4, 0, Layout(data=4, sharding="fsdp", offload=True),
     {"length": 2048, "checkpointing": "full"}),
    # One list of foreach cannot hold both DTensors and tensors: the norms are not divided.
    ("tensor parallel", "llama-3.1-8b", 8, 0, Layout(tensor=8),
     {"length": 4096, "optimizer": "adamw-loop"}),
    ("tensor parallel, checkpointed", "llama-2-13b", 4, 0, Layout(tensor=4),
     {"batch": 2, "length": 2048, "checkpointing": "full", "optimizer": "adamw-loop"}),
    ("1F1B, first stage", "tinyllama-1.1b", 4, 0, Layout(pipeline=4, micro_batches=8, stage=0),
     {"batch": 1, "length": 1024}),
    ("1F1B, last stage", "tinyllama-1.1b", 4, 3, Layout(pipeline=4, micro_batches=8, stage=3),
     {"batch": 1, "length": 1024}),
    ("GPipe, first stage", "llama-2-7b", 8, 0,
     Layout(pipeline=8, micro_batches=8, schedule="gpipe", stage=0), {"batch": 1, "length": 1024}),
    ("sequence parallel", "llama-3.1-8b", 8, 0, Layout(tensor=8, sequence=True),
     {"batch": 2, "length": 4096}),
    ("sequence parallel, checkpointed", "llama-2-13b", 4, 0, Layout(tensor=4, sequence=True),
     {"length": 4096, "checkpointing": "full"}),
    ("sequence parallel, FSDP2", "llama-3.1-70b", 64, 0,
     Layout(data=8, tensor=8, sequence=True, sharding="fsdp"),
     {"length": 4096, "checkpointing": "full"}),
    # Of the ranks that share a sequence the last but one needs most.
    ("context parallel", "tinyllama-1.1b", 4, 2, Layout(context=4), {"length": 16384}),
    ("context parallel, FSDP2", "llama-3.1-8b", 8, 6, Layout(context=8, sharding="fsdp"),
     {"length": 65536, "checkpointing": "full"}),
    # One list of foreach cannot hold DTensors of two meshes.
    ("expert parallel", "mixtral-8x7b", 8, 0, Layout(data=8, expert=8, sharding="fsdp"),
     {"length": 2048, "optimizer": "adamw-loop"}),
    ("expert parallel, checkpointed", "qwen3-30b-a3b", 16, 0,
     Layout(data=16, expert=8, sharding="fsdp"),
     {"length": 4096, "checkpointing": "full", "optimizer": "adamw-loop"}),
)  # fmt: skip


def _program(layout: Layout) -> str:
    if layout.sequence or layout.context > 1:
        return "train_sequence.py"
    return "train_experts.py" if layout.expert > 1 else "train_ranks.py"


CASES: Final = tuple(
    Case(
        f"{name}, {model}",
        find_model(model).config.fields,
        Recipe(layout=layout, **fields),
        program=_program(layout),
        options=("--world-size", str(ranks), "--rank", str(rank)),
    )
    for name, model, ranks, rank, layout, fields in _ROWS
)
