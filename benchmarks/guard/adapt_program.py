"""Trains a GPT on batches of many lengths; prints one JSON object for each way.

    python adapt_program.py SOURCE_OF_ULLAGE WAYS PROGRAM LENGTHS

WAYS: some of these, with commas between: "static N" applies rung N and stops at the first error;
"guard" recovers; "adapt" forecasts; "cost" measures the host's CPU time for a change and for a
step's forecast. Each has a model of its own, and begins with an empty cache.
PROGRAM: one of PROGRAMS.
LENGTHS: the tokens of each step's rows, such as 512,1024.

Each step is timed by the program's own clock, which with `ullage run --clock virtual` is the
simulated GPU's.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, sys.argv[1])
import ullage
from ullage.act.techniques.applying.apply import describe_program
from ullage.act.techniques.plan import Foreseen
from ullage.act.techniques.technique import Action


@dataclass(frozen=True, slots=True)
class Program:
    """A model, and the ladder of its guard: blocks that each rung checkpoints, and blocks whose
    saved tensors, of a checkpoint its inputs, it moves to the host.
    """

    rows: int = 8
    width: int = 2048
    heads: int = 16
    layers: int = 8
    words: int = 16000
    checkpointed: tuple[int, ...] = (2, 4, 6, 8)
    offloaded: tuple[int, ...] = (0, 0, 0, 0)
    is_eager: bool = False  # attention writes its scores


PROGRAMS = {
    "fused": Program(),
    "eager": Program(is_eager=True),
    "offload": Program(checkpointed=(4, 8, 8, 8), offloaded=(0, 0, 4, 8)),
    "narrow": Program(
        rows=4, width=1280, heads=20, layers=16, words=32000, checkpointed=(4, 8, 12, 16)
    ),
}
PROGRAM = PROGRAMS[sys.argv[3]]
ROWS, WIDTH, HEADS = PROGRAM.rows, PROGRAM.width, PROGRAM.heads
LAYERS, WORDS, IS_EAGER = PROGRAM.layers, PROGRAM.words, PROGRAM.is_eager
LONGEST = 4096
GPU = "rtx-4090"
REPEATS = 200


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        """x and the result are (batch, tokens, WIDTH)."""
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        if IS_EAGER:
            scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
            y = scores.softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """A GPT whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids: Any) -> Any:
        """ids are (batch, tokens), the result the loss of the next tokens."""
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def make_plans(model: Any, optimizer: Any) -> list[Any]:
    """The rungs: more and more blocks are checkpointed, and offloaded."""
    plans = []
    for num_checkpointed, num_offloaded in zip(
        PROGRAM.checkpointed, PROGRAM.offloaded, strict=True
    ):
        modules = tuple(f"blocks.{number}" for number in range(num_checkpointed))
        actions = [Action("checkpoint", modules)]
        foreseen = None
        if num_offloaded:
            actions.append(Action("offload_activations", modules[:num_offloaded]))
            # Of the longest batch: bfloat16 inputs, and as much for rounding pinned memory up.
            host_bytes = 2 * 2 * num_offloaded * ROWS * LONGEST * WIDTH
            foreseen = Foreseen(GPU, 0, 0, 0, 0.0, host_bytes)
        made_for = describe_program(model, optimizer, modules)
        plans.append(ullage.Plan(tuple(actions), made_for, foreseen))
    return plans


def train(model: Any, optimizer: Any, guard: Any, lengths: list[int]) -> list[dict[str, Any]]:
    """What each step took, and the allocator's peak; fewer than lengths after an error."""

    def step(ids: Any) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    rows = []
    for length in lengths:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        started = time.perf_counter()
        ids = torch.zeros(ROWS, length, dtype=torch.long, device="cuda")
        try:
            (step if guard is None else lambda ids: guard.step(step, ids))(ids)
        except torch.OutOfMemoryError:
            break
        torch.cuda.synchronize()
        rows.append(
            {
                "s": time.perf_counter() - started,
                "peak": torch.cuda.max_memory_allocated(),
                "reserved": torch.cuda.max_memory_reserved(),
                "rung": 0 if guard is None else guard.rung,
            }
        )
    return rows


def measure_cost(model: Any, optimizer: Any, guard: Any, lengths: list[int]) -> dict[str, float]:
    """Microseconds of the process for a change of the rung, and for the forecast of a step."""
    train(model, optimizer, guard, lengths)
    ids = torch.zeros(ROWS, lengths[0], dtype=torch.long, device="cuda")
    ladder, adaptation = guard._ladder, guard._adaptation
    changes, steps = [], []
    for turn in range(REPEATS):
        started = time.process_time()
        ladder.go_to(turn % len(ladder))
        changes.append(time.process_time() - started)
    ladder.go_to(0)
    for _ in range(REPEATS):
        started = time.process_time()
        adaptation.begin((ids,), {})
        adaptation.end()
        steps.append(time.process_time() - started)
    return {"change_us": 1e6 * median(changes), "step_us": 1e6 * median(steps)}


def run(way: str, lengths: list[int]) -> dict[str, Any]:
    """What a way came to."""
    gc.collect()  # the model of the way before
    torch.cuda.empty_cache()
    model = Model().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    plans = make_plans(model, optimizer)
    guard = None
    if way.startswith("static"):
        number = int(way.split()[1])
        context: Any = plans[number - 1].applied(model, optimizer) if number else None
    else:
        context = guard = ullage.guard(model, optimizer, plans=plans, adapt=way != "guard")
    free_bytes, _ = torch.cuda.mem_get_info()
    document = {"way": way, "capacity": free_bytes + torch.cuda.memory_reserved()}
    with contextlib.redirect_stderr(io.StringIO()), context or contextlib.nullcontext():
        if way == "cost":
            document |= measure_cost(model, optimizer, guard, lengths)
        else:
            document["rows"] = train(model, optimizer, guard, lengths)
    log = guard.log if guard else []
    document["log"] = [{"step": each.step, "kind": each.kind, "text": str(each)} for each in log]
    document["recoveries"] = guard.num_recoveries if guard else 0
    return document


def main() -> None:
    """Trains, and prints."""
    lengths = [int(text) for text in sys.argv[4].split(",")]
    for way in sys.argv[2].split(","):
        print(json.dumps(run(way, lengths)), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
