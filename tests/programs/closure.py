"""LBFGS: forward and backward run within the optimizer's step, three times in each of two."""

import torch
from torch import Tensor, nn


def main() -> None:
    """One line per step: its loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).to("cuda")
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=3, tolerance_grad=-1, tolerance_change=-1
    )
    inputs = torch.randn(512, 1024, device="cuda")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        print(optimizer.step(closure).item(), flush=True)


if __name__ == "__main__":
    main()
