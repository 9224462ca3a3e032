"""Trains with batches of many lengths; the long ones fit only when blocks are checkpointed.

adapts.py SOURCE_OF_ULLAGE WAY ...      one way after another

WAY is "off", "on", "sizes": the sizes of batches are given; "blind": the batches have no tensor; or
"cpu". The last line is a document: for each way the rungs, and what the guard said and did.
"""

import contextlib
import gc
import io
import json
import logging
import sys
from pathlib import Path

import torch

sys.path[:0] = [sys.argv[1], str(Path(__file__).parent)]
from long_batch import WIDTH, Model

import ullage

LENGTHS = [256, 320, 384, 512, 2048, 256, 640, 2048, 256]
SETTINGS = {"off": False, "on": True, "sizes": ullage.Adapt(sizes=lambda length: length)}


class Lines(logging.Handler):
    """Keeps what was logged."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        """Keeps a line."""
        self.lines.append(record.getMessage())


def train(way, device="cuda", lengths=LENGTHS):
    """The document of a way."""
    gc.collect()  # the model of the way before
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch):
        if isinstance(batch, int):
            batch = torch.randn(8, batch, WIDTH, device=device)
        model(batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    printed, rungs, allocated = io.StringIO(), [], []
    lines = Lines()
    logging.getLogger("ullage.guard").addHandler(lines)
    logging.getLogger("ullage.guard").setLevel(logging.INFO)
    guard = ullage.guard(model, optimizer, adapt=SETTINGS.get(way, True))
    before = torch.cuda.memory_allocated()
    with contextlib.redirect_stderr(printed), guard:
        for length in lengths:
            is_plain = way in ("sizes", "blind")
            batch = length if is_plain else torch.randn(8, length, WIDTH, device=device)
            guard.step(step, batch)
            del batch
            rungs.append(guard.rung)
            allocated.append(torch.cuda.memory_allocated() - before)
    logging.getLogger("ullage.guard").removeHandler(lines)
    return {
        "rungs": rungs,
        "allocated": allocated,
        "recoveries": guard.num_recoveries,
        "log": [str(change) for change in guard.log],
        "logged": lines.lines,
        "said": printed.getvalue().splitlines(),
        "generator": torch.cuda.get_rng_state().tolist(),
    }


def main():
    """Trains, and prints."""
    torch.set_num_threads(1)
    given = {"blind": {"lengths": [256, 256]}, "cpu": {"device": "cpu", "lengths": [16]}}
    print(json.dumps({way: train(way, **given.get(way, {})) for way in sys.argv[2:]}))


if __name__ == "__main__":
    main()
