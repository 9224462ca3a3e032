"""Fails for a reason of its own, after it has used some memory."""

import torch


def check(x: torch.Tensor) -> None:
    """Never satisfied."""
    raise ValueError(f"a shape of {tuple(x.shape)} is not what this program wants")


if __name__ == "__main__":
    check(torch.zeros(1024, 1024, device="cuda"))
