"""A pipeline by hand: stage i, on device i, has i + 1 layers of 16 MiB; three steps of AdamW."""

import torch
from torch import nn

WIDTH, ROWS = 2048, 32


def main() -> None:
    """Forward from device to device, and back."""
    torch.cuda.set_device(torch.cuda.device_count() - 1)  # where nothing is said: the last
    stages = [
        nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(i + 1))).to(f"cuda:{i}")
        for i in range(torch.cuda.device_count())
    ]
    optimizer = torch.optim.AdamW([p for stage in stages for p in stage.parameters()])
    for _ in range(3):
        x = torch.zeros(ROWS, WIDTH, device="cuda:0")
        for i, stage in enumerate(stages):
            x = stage(x.to(f"cuda:{i}", non_blocking=True))
        x.sum().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
