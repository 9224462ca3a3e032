"""The training step that most workloads share, and makers of its batches."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[], None]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def train(
    model: nn.Module,
    make_batch: Callable[[], Any],
    loss_of: Callable[[nn.Module, Any], Tensor],
    *,
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW,
    amp: torch.dtype | None = None,
    scaler: bool = False,
    accumulate: int = 1,
    **options: Any,
) -> Step:
    """A training step: `accumulate` batches forward and backward, then the optimizer."""
    model = model.cuda().train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optim = optimizer(trained, lr=1e-4, **options)
    scale = torch.amp.GradScaler("cuda", enabled=scaler)

    def step() -> None:
        for _ in range(accumulate):
            batch = make_batch()
            with torch.autocast("cuda", dtype=amp or BF16, enabled=amp is not None):
                loss = loss_of(model, batch) / accumulate
            scale.scale(loss).backward()
        scale.step(optim)
        scale.update()
        optim.zero_grad()

    return step


def integers(low: int, high: int, shape: tuple[int, ...]) -> Callable[[], Tensor]:
    """A maker of random integers in [low, high) on the GPU."""
    return lambda: torch.randint(low, high, shape, device="cuda")


def images(model: nn.Module, batch: int, *, channels_last: bool = False, **kw: Any) -> Step:
    """Classification of 224x224 images into 1000 classes."""
    if channels_last:
        model = model.to(memory_format=torch.channels_last)

    def make() -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, 3, 224, 224, device="cuda")
        x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
        return x, torch.randint(0, 1000, (batch,), device="cuda")

    return train(model, make, lambda m, b: F.cross_entropy(m(b[0]), b[1]), **kw)
