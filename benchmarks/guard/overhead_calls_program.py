"""Measures a step of GPT-2 124M with and without a guard of its calls, or a guard of several ranks;
prints one JSON object.

    python overhead_calls_program.py SOURCE_OF_ULLAGE ROUNDS calls|steps

With RANK and WORLD_SIZE the model is in DistributedDataParallel with NCCL. "calls": the calls of
the model are guarded, as under `ullage exec --guard`; "steps": `ullage.guard` on several ranks.

What the guard itself does is measured with the same model, parameters and optimizer, whose forward
and backward compute nothing: the difference between such a step with the guard and one without.
Times are of the process's CPU; for "steps" also those of the clock, as ranks wait for their votes.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from overhead_program import load_example
from torch.nn.parallel import DistributedDataParallel

import ullage

REPEATS, STEPS, PAIRS = 20, 10, 6


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
    """A model, its optimizer, and the two kinds of steps."""

    def __init__(self) -> None:
        self.is_distributed = "RANK" in os.environ
        example = load_example()
        self.inner = example.GPT().to("cuda")
        self.model: Any = self.inner
        if self.is_distributed:
            self.model = DistributedDataParallel(self.inner, gradient_as_bucket_view=False)
        self.optimizer = torch.optim.AdamW(self.inner.parameters(), lr=6e-4)
        self.batch = example.make_batch(1, 1024)
        self.native = torch.autograd.backward
        self.parameters = list(self.inner.parameters())
        # As if the optimizer left them: DDP's copies into its buckets are a part of both ways.
        self.gradients = [torch.zeros_like(each) for each in self.parameters]
        self.forward = type(self.inner).forward

    def step(self, backward: Callable[[Any], None]) -> None:
        """A step of the training."""
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = self.model(*self.batch)
        backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def empty_step(self, backward: Callable[[Any], None]) -> None:
        """The same without what the model and the optimizer compute."""
        loss = self.model(*self.batch)
        backward(loss)
        for each in self.parameters:
            each.grad = None

    def compute_nothing(self) -> None:
        """From now on the model's forward and backward."""
        type(self.inner).forward = lambda *_: Touch.apply(self.gradients, *self.parameters)

    def compute(self) -> None:
        """Undoes that."""
        type(self.inner).forward = self.forward


def cpu_ms(call: Callable[[], object]) -> float:
    """The CPU time of a call."""
    started = time.process_time()
    call()
    return 1e3 * (time.process_time() - started)


def measure_calls(bench: Bench, rounds: int) -> list[dict[str, float]]:
    """Rounds with the calls of the model guarded."""
    order = random.Random(1)
    results = []
    with ullage.guard_model(bench.model, bench.optimizer) as guard:
        bench.step(lambda loss: loss.backward())

        def run(way: str, step: Callable[[Callable[[Any], None]], None]) -> float:
            if way == "guarded":
                return cpu_ms(lambda: step(lambda loss: loss.backward()))
            for each in guard._live_optimizers():
                each.detach()
            # While something is under way, a call of the model goes past the guard.
            with guard._activity.busy():
                taken = cpu_ms(lambda: step(bench.native))
            for each in guard._live_optimizers():
                each.attach()
            return taken

        for _ in range(rounds):
            ways = order.sample(("off", "guarded", "off_again"), 3)
            times = {way: run(way, bench.step) for way in ways}
            bench.compute_nothing()
            empty = {"off": 0.0, "guarded": 0.0}
            for way in order.sample((*empty,) * PAIRS, 2 * PAIRS):
                empty[way] += run(way, bench.empty_step) / PAIRS
            bench.compute()
            own = empty["guarded"] - empty["off"] + optimizer_ms(bench, guard)
            results.append({**times, "own": own})
    return results


def optimizer_ms(bench: Bench, guard: Any) -> float:
    """What the guard of calls does for a step of the optimizer."""
    for parameter, gradient in zip(bench.parameters, bench.gradients, strict=True):
        parameter.grad = gradient
    (guarded,) = guard._live_optimizers()

    def run() -> None:
        for _ in range(REPEATS):
            guarded._take()
            guard._end_step(bench.optimizer)

    taken = cpu_ms(run) / REPEATS
    bench.optimizer.zero_grad()
    return taken


def measure_steps(bench: Bench, rounds: int) -> list[dict[str, float]]:
    """Rounds with `ullage.guard` on several ranks; each opens a guard, and has several steps."""
    return [measure_guard(bench) for _ in range(rounds // STEPS)]


def measure_guard(bench: Bench) -> dict[str, float]:
    """The median step without a guard and with one, and what the guard itself does."""
    tensor = torch.zeros(8, device="cuda")

    def step() -> None:
        bench.step(lambda loss: loss.backward())

    def reduce() -> None:
        for _ in range(REPEATS):
            dist.all_reduce(tensor)

    step()
    off = [cpu_ms(step) for _ in range(2 * STEPS)]
    plain = cpu_ms(reduce)
    with ullage.guard(bench.model, bench.optimizer, plans=[]) as guard:
        guard.step(step)
        guarded = [cpu_ms(lambda: guard.step(step)) for _ in range(STEPS)]
        watched: list[float] = []
        guard.step(lambda: watched.append(cpu_ms(reduce)))
        each = max(0.0, watched[0] - plain) / REPEATS

        def own() -> None:
            for _ in range(REPEATS):
                guard.step(guard._ranks.vote_on_optimizer)

        clock = time.perf_counter()
        taken = cpu_ms(own) / REPEATS
        clock = 1e3 * (time.perf_counter() - clock) / REPEATS
        for parameter, gradient in zip(bench.parameters, bench.gradients, strict=True):
            parameter.grad = gradient
        started = time.process_time()
        for _ in range(REPEATS):
            guard._guarded[0]._take()
        taken += 1e3 * (time.process_time() - started) / REPEATS
        bench.optimizer.zero_grad()
        counts: list[int] = []
        logs = guard._ranks._collectives._logs
        guard.step(lambda: (step(), counts.append(sum(map(len, logs.values())))))
    return {
        "off": statistics.median(off[::2]), "off_again": statistics.median(off[1::2]),
        "guarded": statistics.median(guarded), "own": taken + each * counts[0], "clock": clock,
        "collectives": counts[0],
    }  # fmt: skip


def main() -> None:
    """Measures, and prints."""
    rounds, kind = int(sys.argv[2]), sys.argv[3]
    rank = int(os.environ.get("RANK", "0"))
    if "RANK" in os.environ:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
    bench = Bench()
    results = (measure_calls if kind == "calls" else measure_steps)(bench, rounds)
    if rank == 0:
        print(json.dumps({"rounds": results, "parameters": len(bench.parameters)}))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
