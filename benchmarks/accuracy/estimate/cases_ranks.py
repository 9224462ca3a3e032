"""Training loops on several GPUs, of which one rank is played; the program is train_ranks.py."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.accuracy.estimate.case import Case
from ullage.estimate.layout import Layout
from ullage.estimate.recipe import Recipe
from ullage.models.builtin import find_model

# (name, model, ranks, the rank that is played, layout, other fields of the recipe)
_ROWS: Final[tuple[tuple[str, str, int, int, Layout, dict[str, Any]], ...]] = (
    ("DDP", "smollm2-135m", 8, 0, Layout(data=8), {"batch": 4, "length": 1024}),
    ("ZeRO-1", "tinyllama-1.1b", 8, 0, Layout(data=8, sharding="zero1"),
     {"batch": 1, "length": 2048}),
    ("ZeRO-2", "tinyllama-1.1b", 4, 0, Layout(data=4, sharding="zero2"),
     {"batch": 2, "length": 1024}),
    ("FSDP2", "llama-3.1-8b", 8, 0, Layout(data=8, sharding="fsdp"),
     {"length": 4096, "checkpointing": "full"}),
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
)  # fmt: skip

CASES: Final = tuple(
    Case(
        f"{name}, {model}",
        find_model(model).config.fields,
        Recipe(layout=layout, **fields),
        program="train_ranks.py",
        options=("--world-size", str(ranks), "--rank", str(rank)),
    )
    for name, model, ranks, rank, layout, fields in _ROWS
)
