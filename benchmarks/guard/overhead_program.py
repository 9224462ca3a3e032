"""Measures a step of GPT-2 124M with and without a guard; prints one JSON object.

    python overhead_program.py SOURCE_OF_ULLAGE ROUNDS STEPS

Times are of the process's CPU, so that other programs of the machine count little. Each round has
as many steps without a guard, with one, and without one again, in an order of its own.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, sys.argv[1])
import ullage

EXAMPLE = Path(sys.argv[1]).parent / "examples" / "gpt2" / "train.py"
WAYS = ("off", "guarded", "off_again")


def load_example() -> Any:
    """The example, as a module."""
    spec = importlib.util.spec_from_file_location("example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Measures, and prints."""
    rounds, steps = int(sys.argv[2]), int(sys.argv[3])
    example = load_example()
    model = example.GPT().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    batch = example.make_batch(1, 1024)

    def step(ids: Any, targets: Any) -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(ids, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def time_ms(way: str) -> float:
        is_guarded = way == "guarded"
        with ullage.guard(model, optimizer) if is_guarded else nullcontext() as guard:
            call = (lambda: guard.step(step, *batch)) if is_guarded else (lambda: step(*batch))
            call()
            started = time.process_time()
            for _ in range(steps):
                call()
            return 1e3 * (time.process_time() - started) / steps

    time_ms("off")
    order = random.Random(1)
    results: list[dict[str, float]] = []
    for _ in range(rounds):
        ways = order.sample(WAYS, len(WAYS))
        results.append({way: time_ms(way) for way in ways})
    print(json.dumps({"rounds": results, "parameters": len(list(model.parameters()))}))


if __name__ == "__main__":
    main()
