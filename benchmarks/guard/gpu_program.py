"""Trains two models on the GPU of this machine under caps of the allocator that get lower and
lower, each step guarded; prints one JSON object with how each ended.

    python gpu_program.py SOURCE_OF_ULLAGE NUM_CAPS

Every error comes from the allocator itself. What a step leaves is held against the same step
without a cap and without a guard, bit for bit, under deterministic algorithms.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, sys.argv[1])
import ullage
from ullage.act.techniques.applying.apply import describe_program
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action
from ullage.ground.errors import GuardError, PlanError

STEPS, MIB = 3, 2**20
GPT_WIDTH, GPT_LENGTH, VOCABULARY, GPT_BATCH = 512, 512, 8192, 16
CNN_WIDTH, CNN_SIZE, CNN_BATCH = 128, 64, 64


class Attention(nn.Module):
    """A block of a GPT with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(GPT_WIDTH), nn.LayerNorm(GPT_WIDTH)
        self.qkv = nn.Linear(GPT_WIDTH, 3 * GPT_WIDTH)
        self.out = nn.Linear(GPT_WIDTH, GPT_WIDTH)
        self.up = nn.Linear(GPT_WIDTH, 4 * GPT_WIDTH)
        self.down = nn.Linear(4 * GPT_WIDTH, GPT_WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """x and the result are (batch, tokens, width)."""
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (8, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.out(y.transpose(1, 2).flatten(2)), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), 0.1)


class GPT(nn.Module):
    """A language model of eight blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, GPT_WIDTH)
        self.blocks = nn.ModuleList(Attention() for _ in range(8))
        self.head = nn.Linear(GPT_WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits, (batch, tokens, VOCABULARY)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Residual(nn.Module):
    """Two convolutions with batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(CNN_WIDTH, CNN_WIDTH, 3, padding=1, bias=False)
        self.second = nn.Conv2d(CNN_WIDTH, CNN_WIDTH, 3, padding=1, bias=False)
        self.norm, self.norm2 = nn.BatchNorm2d(CNN_WIDTH), nn.BatchNorm2d(CNN_WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """x and the result are (batch, channels, height, width)."""
        return F.relu(x + self.norm2(self.second(F.relu(self.norm(self.first(x))))))


class CNN(nn.Module):
    """A residual network of six blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CNN_WIDTH, 3, padding=1)
        self.blocks = nn.ModuleList(Residual() for _ in range(6))
        self.head = nn.Linear(CNN_WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        """The logits, (batch, 10)."""
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class Training:
    """A model, its optimizer and its batches, from one seed."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(3)
        self.is_gpt = name == "gpt"
        self.model: nn.Module = (GPT() if self.is_gpt else CNN()).cuda()
        parameters = self.model.parameters()
        if self.is_gpt:
            self.optimizer: Any = torch.optim.AdamW(parameters, lr=1e-3, foreach=True)
        else:
            self.optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, foreach=True)
        self.batches = [self._draw() for _ in range(STEPS)]

    def _draw(self) -> tuple[Tensor, Tensor]:
        if self.is_gpt:
            tokens = torch.randint(VOCABULARY, (GPT_BATCH, GPT_LENGTH + 1), device="cuda")
            return tokens[:, :-1], tokens[:, 1:]
        images = torch.randn(CNN_BATCH, 3, CNN_SIZE, CNN_SIZE, device="cuda")
        return images, torch.randint(10, (CNN_BATCH,), device="cuda")

    def run(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """A step."""
        with torch.autocast("cuda", torch.bfloat16, enabled=self.is_gpt):
            logits = self.model(inputs)
            loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def state(self) -> dict[str, Tensor]:
        """Parameters, buffers, states of the optimizer and of the generator, on the host."""
        values = dict(self.model.state_dict())
        for name, parameter in self.model.named_parameters():
            states = self.optimizer.state.get(parameter, {})
            values |= {f"{name} {key}": value for key, value in states.items()}
        values["generator"] = torch.cuda.get_rng_state()
        return {name: torch.as_tensor(value).cpu().clone() for name, value in values.items()}


def fresh(name: str, step: int) -> Training:
    """A training before a step (from 0), with no cap and an empty cache."""
    gc.collect()
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()
    training = Training(name)
    for batch in training.batches[:step]:
        training.run(*batch)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return training


def expected(name: str, step: int) -> tuple[dict[str, Tensor], int, int]:
    """What the step leaves; bytes reserved before it, and at its peak."""
    training = fresh(name, step)
    before = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    training.run(*training.batches[step])
    return training.state(), before, torch.cuda.max_memory_reserved()


def judge(name: str, step: int, cap: int, right: dict[str, Tensor]) -> str:
    """How a guarded step ends under a cap of the allocator, in bytes."""
    training = fresh(name, step)
    total = torch.cuda.get_device_properties(0).total_memory
    with ullage.guard(training.model, training.optimizer) as guard:
        torch.cuda.set_per_process_memory_fraction(cap / total)
        end = "recovered"
        try:
            guard.step(training.run, *training.batches[step])
        except torch.OutOfMemoryError:
            end = "no rung fits; the step ran after the cap was lifted"
            torch.cuda.set_per_process_memory_fraction(1.0)
            guard.step(training.run, *training.batches[step])
        except GuardError as error:
            return f"refused: {str(error)[:100]}"
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        if end == "recovered" and not guard.num_recoveries:
            return "no error came"
        rung = f", rung {guard.rung}" if end == "recovered" else ""
    return compared(training.state(), right) or end + rung


def compared(state: dict[str, Tensor], right: dict[str, Tensor]) -> str | None:
    """What differs, None where nothing does."""
    names = [
        name for name in right if name not in state or not torch.equal(state[name], right[name])
    ]
    return f"differs: {', '.join(names[:3])}" if names else None


def sweep(name: str, step: int, num_caps: int) -> dict[str, Any]:
    """One model, one step, caps from its peak downwards."""
    right, before, peak = expected(name, step)
    twice = compared(expected(name, step)[0], right)
    caps = [int(before + (peak - before) * k / num_caps) for k in range(num_caps, 0, -1)]
    begin = time.perf_counter()
    ends = Counter(judge(name, step, cap - MIB, right) for cap in caps)
    return {
        "model": name, "step": step + 1, "peak_reserved_bytes": peak, "reserved_before": before,
        "twice_without_guard": twice or "equal", "ends": ends,
        "seconds": time.perf_counter() - begin,
    }  # fmt: skip


# What moves tensors on streams of its own, or runs forward twice: the same numbers on a GPU, too?
TECHNIQUES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("checkpoint", {}), ("selective_checkpoint", {}), ("offload_activations", {}),
    ("offload_activations", {"least_kib": 0}), ("parameter_offload", {}),
    ("optimizer_offload", {}), ("optimizer_in_backward", {}), ("free_gradients", {}),
    ("chunked_loss", {}),
)  # fmt: skip
ON_BLOCKS = ("checkpoint", "selective_checkpoint", "offload_activations", "parameter_offload")


def under(name: str, technique: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Three steps under a technique against three without: what differs, peaks and time."""
    blocks = tuple(path for path, each in fresh(name, 0).model.named_modules() if is_block(each))
    modules = blocks if technique in ON_BLOCKS else ()
    row: dict[str, Any] = {"model": name, "technique": technique, "settings": settings}
    torch.cuda.reset_peak_memory_stats()
    plain, row["plain_ms"] = trained(fresh(name, 0))
    row["plain_peak_bytes"] = torch.cuda.max_memory_allocated()
    del plain
    right = trained(fresh(name, 0))[0].state()
    training = fresh(name, 0)
    torch.cuda.reset_peak_memory_stats()
    try:
        target = describe_program(training.model, training.optimizer, modules)
        plan = Plan((Action(technique, modules, settings),), target)
        with plan.applied(training.model, training.optimizer):
            _, row["ms"] = trained(training)
    except (PlanError, RuntimeError) as error:
        return {**row, "result": f"{type(error).__name__}: {str(error)[:160]}"}
    row["peak_bytes"] = torch.cuda.max_memory_allocated()
    return {**row, "result": compared(training.state(), right) or "equal"}


def is_block(module: nn.Module) -> bool:
    """Whether a plan is put on it."""
    return isinstance(module, Attention | Residual)


def trained(training: Training) -> tuple[Training, float]:
    """After its steps, and milliseconds of the last."""
    for batch in training.batches:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        training.run(*batch)
        torch.cuda.synchronize()
    return training, 1e3 * (time.perf_counter() - begin)


def times(name: str, num: int = 30) -> dict[str, float]:
    """Median milliseconds of a step without and with a guard, in turn."""
    training = fresh(name, 1)

    def timed(call: Callable[[], Any]) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin)

    batch = training.batches[0]
    ways: dict[str, list[float]] = {"off": [], "guarded": [], "off_again": []}
    with ullage.guard(training.model, training.optimizer) as guard:
        guard.step(training.run, *batch)
        for each in guard._guarded:
            each.detach()
        for _ in range(num):
            ways["off"].append(timed(lambda: training.run(*batch)))
            for each in guard._guarded:
                each.attach()
            ways["guarded"].append(timed(lambda: guard.step(training.run, *batch)))
            for each in guard._guarded:
                each.detach()
            ways["off_again"].append(timed(lambda: training.run(*batch)))
    return {way: sorted(values)[len(values) // 2] for way, values in ways.items()}


def results(num_caps: int) -> Iterator[dict[str, Any]]:
    """All sweeps: the first step, which makes the optimizer's states, and the third."""
    for name in ("gpt", "cnn"):
        for step in (0, 2):
            yield sweep(name, step, num_caps)


def main() -> None:
    """Prints the results."""
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    properties = torch.cuda.get_device_properties(0)
    print(json.dumps({
        "gpu": properties.name, "torch": torch.__version__,
        "times_ms": {name: times(name) for name in ("gpt", "cnn")},
        "techniques": [under(m, t, s) for m in ("gpt", "cnn") for t, s in TECHNIQUES],
        "sweeps": list(results(int(sys.argv[2]))),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
