"""Measures a step of GPT-2 124M with and without a guard; prints one JSON object.

    python overhead_program.py SOURCE_OF_ULLAGE ROUNDS

With RANK and WORLD_SIZE the model is in DistributedDataParallel with NCCL.

Each round has steps without a guard, then steps with one, of two kinds: whole steps, and empty ones
of the same model, parameters and optimizer whose forward, backward and update compute nothing. The
difference of the empty ones is the guard's own work, among code and data that are not in the
caches, as in a training. CPU times of the process, and for empty steps those of the clock, too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, sys.argv[1])
import ullage

EXAMPLE = Path(sys.argv[1]).parent / "examples" / "gpt2" / "train.py"
WHOLE, EMPTY = 4, 12


def load_example() -> Any:
    """The example, as a module."""
    spec = importlib.util.spec_from_file_location("example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Touch(torch.autograd.Function):
    """Uses all parameters, and computes nothing."""

    @staticmethod
    def forward(ctx: Any, gradients: list[Any], *_: Any) -> Any:
        ctx.gradients = gradients
        return gradients[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        return (None, *ctx.gradients)


class Bench:
    """A model and its optimizer."""

    def __init__(self) -> None:
        example = load_example()
        self.inner = example.GPT().to("cuda")
        self.model: Any = self.inner
        if dist.is_initialized():
            self.model = DistributedDataParallel(self.inner)
        self.optimizer = torch.optim.AdamW(self.inner.parameters(), lr=6e-4)
        self.batch = example.make_batch(1, 1024)
        self.parameters = list(self.inner.parameters())
        # What empty steps give to the parameters: no program has it, so no guard shall find it.
        self.outside: Any = threading.Event()
        self.outside.gradients = [torch.zeros_like(each) for each in self.parameters]

    def step(self) -> None:
        """A step of the training, whole or empty."""
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = self.model(*self.batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @contextmanager
    def emptied(self) -> Iterator[None]:
        """While forward, backward and the update compute nothing."""
        kind, place = type(self.inner), sys.modules[torch.optim.Adam.__module__]
        forward, update = kind.forward, place.adam
        kind.forward = lambda *_: Touch.apply(self.outside.gradients, *self.parameters)
        place.adam = lambda *_, **__: None
        try:
            yield
        finally:
            kind.forward, place.adam = forward, update


def times_of(run: Callable[[], object], count: int) -> tuple[float, float]:
    """The CPU time and the time by the clock of the median call, in milliseconds."""
    cpu, clock = [], []
    for _ in range(count):
        started, began = time.process_time(), time.perf_counter()
        run()
        cpu.append(1e3 * (time.process_time() - started))
        clock.append(1e3 * (time.perf_counter() - began))
    return statistics.median(cpu), statistics.median(clock)


def measure(bench: Bench, run: Callable[[], object], name: str) -> dict[str, float]:
    """The times of whole and empty steps."""
    run()
    whole, _ = times_of(run, WHOLE)
    with bench.emptied():
        run()
        empty, clock = times_of(run, EMPTY)
    return {name: whole, f"{name} empty": empty, f"{name} clock": clock}


def measure_round(bench: Bench) -> dict[str, float]:
    """Steps without a guard, with one, and without one again."""
    off = measure(bench, bench.step, "off")
    with ullage.guard(bench.model, bench.optimizer) as guard:
        guarded = measure(bench, lambda: guard.step(bench.step), "guarded")
    return {**off, **guarded, **measure(bench, bench.step, "off again")}


def main() -> None:
    """Measures, and prints."""
    rounds = int(sys.argv[2])
    rank = int(os.environ.get("RANK", "0"))
    if "RANK" in os.environ:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
    bench = Bench()
    for _ in range(3):
        bench.step()
    results = [measure_round(bench) for _ in range(rounds)]
    if rank == 0:
        print(json.dumps({"rounds": results, "parameters": len(bench.parameters)}))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
