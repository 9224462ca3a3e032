"""Asks for far more than any GPU has, two calls deep; the error is not caught."""

import torch

PIB = 2**50


def allocate(num_bytes: int) -> torch.Tensor:
    """That many bytes on the GPU."""
    return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")


if __name__ == "__main__":
    block = allocate(64 * 2**20)
    allocate(PIB)
