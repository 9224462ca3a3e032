"""Trains with a long batch that fits on no plan, but in parts.

parts_on_gpu.py SOURCE_OF_ULLAGE WAY ...      one way after another

WAY is "plain", "guarded", "adapts": the guard forecasts, or "splits": it may also split the batch
before a step. The last line is a document: for each way what the allocator had after each step, the
rungs, and what was said.
"""

import contextlib
import gc
import io
import json
import sys

import torch
from long_batch import LONG, SHORT, WIDTH, Model

import ullage

LENGTHS = (SHORT, LONG, SHORT, SHORT, 2 * SHORT, LONG, SHORT, LONG, SHORT)


SETTINGS = {"adapts": {"adapt": True}, "splits": {"adapt": ullage.Adapt(splits=True)}}


def train(way):
    """The document of a training."""
    gc.collect()  # the model of the way before
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    model = Model().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(parts):
        for part, weight in parts:
            (weight * model(part)).backward()
        optimizer.step()
        optimizer.zero_grad()

    guard = None
    if way != "plain":
        guard = ullage.guard(model, optimizer, calm_steps=2, **SETTINGS.get(way, {}))
    rows = []
    said = io.StringIO()
    with contextlib.redirect_stderr(said), guard or contextlib.nullcontext():
        for length in LENGTHS:
            batch = torch.randn(8, length, WIDTH, device="cuda")
            if guard:
                guard.step_in_parts(step, batch)
            else:
                step([(batch, 1.0)])
            del batch
            stats = torch.cuda.memory_stats()
            rows.append(
                {
                    "requested": stats["requested_bytes.all.current"],
                    "allocated": torch.cuda.memory_allocated(),
                    "tensors": stats["active.all.current"],
                    "rung": guard.rung if guard else 0,
                }
            )
    return {
        "rows": rows, "recoveries": guard.num_recoveries if guard else 0,
        "peak": torch.cuda.max_memory_allocated(), "said": said.getvalue().splitlines(),
        "log": [str(change) for change in guard.log] if guard else [],
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps({way: train(way) for way in sys.argv[2:]}))
