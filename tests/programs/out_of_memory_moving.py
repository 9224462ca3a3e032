"""Runs out of memory while a model of 48 GiB moves to the GPU; on the CPU it takes no room."""

import torch
from torch import nn


def main() -> None:
    """Twelve layers of 4 GiB."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(32768, 32768, bias=False) for _ in range(12)))
    model = model.to_empty(device="cpu")
    model.cuda()
    print("moved")


if __name__ == "__main__":
    main()
