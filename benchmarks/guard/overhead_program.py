"""Measures a step of GPT-2 124M with and without a guard; prints one JSON object.

    python overhead_program.py SOURCE_OF_ULLAGE ROUNDS

Times are of the process's CPU, so that other programs of the machine count little. Each round has a
step without a guard, one with it, and one without it again, in an order of its own; beside it, what
the guard itself does for a step.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, sys.argv[1])
import ullage

EXAMPLE = Path(sys.argv[1]).parent / "examples" / "gpt2" / "train.py"
WAYS = ("off", "guarded", "off_again")
REPEATS = 20


def load_example() -> Any:
    """The example, as a module."""
    spec = importlib.util.spec_from_file_location("example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Measures, and prints."""
    rounds = int(sys.argv[2])
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

    def time_ms(guard: Any, way: str) -> float:
        optimizers = guard._guarded if way == "guarded" else ()
        for each in optimizers:
            each.attach()
        started = time.process_time()
        guard.step(step, *batch) if optimizers else step(*batch)
        ended = time.process_time()
        for each in optimizers:
            each.detach()
        return 1e3 * (ended - started)

    def own_ms(guard: Any) -> float:
        started = time.process_time()
        for _ in range(REPEATS):
            guard.step(int)
        before = time.process_time() - started
        # The optimizer's step finds a gradient of every parameter.
        for parameter in model.parameters():
            parameter.grad = torch.zeros(1, device="cuda").expand(parameter.shape)
        started = time.process_time()
        for _ in range(REPEATS):
            guard._guarded[0]._take()
        within = time.process_time() - started
        optimizer.zero_grad()
        return 1e3 * (before + within) / REPEATS

    order = random.Random(1)
    results: list[dict[str, float]] = []
    with ullage.guard(model, optimizer) as guard:
        guard.step(step, *batch)
        for each in guard._guarded:
            each.detach()
        for _ in range(rounds):
            ways = order.sample(WAYS, len(WAYS))
            times = {way: time_ms(guard, way) for way in ways}
            results.append({**times, "own": own_ms(guard)})
    print(json.dumps({"rounds": results, "parameters": len(list(model.parameters()))}))


if __name__ == "__main__":
    main()
