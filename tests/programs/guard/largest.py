"""Looks for the largest batch of a guarded training; prints one JSON object.

    python largest.py SOURCE_OF_ULLAGE line|bent|flat|host

"line": a perceptron, whose peak grows in a straight line; "bent": every sample makes the others
larger; "flat": the batch changes nothing; "host": on the CPU, where the copies of the state are
tried alone, with real numbers.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import torch
from torch import nn

sys.path.insert(0, sys.argv[1])
import ullage
from ullage.act.guard.batches.kept_state import KeptState
from ullage.ground.errors import GuardError

WIDTH = 1024


class Model(nn.Module):
    """A perceptron with batch statistics, dropout and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0
        layers = [nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)]
        self.blocks = nn.ModuleList(nn.Sequential(*layers) for _ in range(2))
        self.norm, self.drop = nn.BatchNorm1d(WIDTH), nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        """x is (rows, WIDTH), the result a mean."""
        self.num_calls += 1
        for block in self.blocks:
            x = block(x)
        return self.drop(self.norm(x)).square().mean()


class Training:
    """A model, its optimizer, and a step."""

    def __init__(self, kind: str, device: str) -> None:
        torch.manual_seed(0)
        self.kind, self.device = kind, device
        self.model = Model().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.sizes: list[int] = []

    def make_batch(self, size: int) -> Any:
        """Rows for a batch of a size."""
        self.sizes.append(size)
        rows = {"line": 64 * size, "bent": 4 * size * size}.get(self.kind, 64)
        return torch.randn(rows, WIDTH, device=self.device)

    def step(self, batch: Any) -> Any:
        """Forward, backward and the optimizer."""
        random.random()
        loss = self.model(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def state(self) -> list[Any]:
        """All that a step changes, as numbers."""
        tensors = [*self.model.state_dict().values()]
        for state in self.optimizer.state.values():
            tensors += state.values()
        return [
            [tensor.detach().cpu().double().sum().item() for tensor in tensors],
            random.getstate()[1][:3], torch.get_rng_state().sum().item(), self.model.num_calls,
            [parameter.grad is None for parameter in self.model.parameters()],
            len(self.optimizer.state), self.model.training,
        ]  # fmt: skip


def is_fitting(guard: Any, training: Training, size: int) -> bool:
    """Whether a step with a batch of this size runs on the program's own rung."""
    torch.cuda.empty_cache()
    before = guard.num_recoveries
    try:
        guard.step(training.step, training.make_batch(size))
    except torch.OutOfMemoryError:
        return False
    return guard.num_recoveries == before


def look(kind: str) -> dict[str, Any]:
    """The largest batch on the GPU, and what is left of looking for it."""
    training = Training(kind, "cuda")
    with ullage.guard(training.model, training.optimizer, cap="4GiB") as guard:
        guard.step(training.step, torch.randn(64, WIDTH, device="cuda"))  # makes workspaces
        before = [*training.state(), torch.cuda.memory_allocated()]
        try:
            largest = guard.largest_batch(training.step, training.make_batch)
        except GuardError as error:
            return {"refused": str(error), "same": _is_same(before, training)}
        after = [*training.state(), torch.cuda.memory_allocated()]
        return {
            "size": largest.size, "predicted": largest.predicted_size, "sizes": training.sizes[:],
            "predicted_bytes": largest.predicted_bytes, "confirmed": largest.confirmed_bytes,
            "is_line": largest.is_line, "failed": largest.failed_size, "text": largest.text,
            "same": before == after, "limit": largest.limit_bytes,
            "fits": is_fitting(guard, training, largest.size),
            "fits_larger": is_fitting(guard, training, largest.size * 5 // 4),
        }  # fmt: skip


def _is_same(before: list[Any], training: Training) -> bool:
    return before == [*training.state(), torch.cuda.memory_allocated()]


def keep_on_host() -> dict[str, Any]:
    """Whether steps that are undone leave the state as it was, and the next step the same."""
    answers = {}
    for num_steps in (0, 2):
        training, twin = (Training("line", "cpu") for _ in range(2))
        results = []
        for each in (training, twin):
            torch.manual_seed(1)
            random.seed(1)
            with ullage.guard(each.model, each.optimizer) as guard:
                for _ in range(num_steps):
                    guard.step(each.step, each.make_batch(1))
                if each is twin:
                    before = each.state()
                    copies = KeptState(each.model, guard._optimizers, guard._state)
                    for size in (1, 2):
                        each.step(each.make_batch(size))
                    moved = each.state() != before
                    copies.restore()
                    answers[f"restored {num_steps}"] = moved and each.state() == before
                guard.step(each.step, each.make_batch(1))
            results.append(each.state())
        answers[f"next {num_steps}"] = results[0] == results[1]
    training = Training("line", "cpu")
    with ullage.guard(training.model, training.optimizer) as guard:
        training.model(training.make_batch(1)).backward()
        for call in (
            lambda: KeptState(training.model, guard._optimizers, guard._state),
            lambda: guard.largest_batch(training.step, training.make_batch),
        ):
            try:
                call()
            except ullage.UllageError as error:
                answers.setdefault("refused", []).append(str(error))
    return answers


if __name__ == "__main__":
    print(json.dumps(keep_on_host() if sys.argv[2] == "host" else look(sys.argv[2])))
