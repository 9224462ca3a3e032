"""Fails because of a value that no kernel computed: at the read, or later in the same function."""

import sys

import torch


def at_the_read(loss: torch.Tensor) -> None:
    """In the very line."""
    assert loss.item() > 3, "diverged"  # read


def later(loss: torch.Tensor) -> None:
    """A name that is bound only where the value is another."""
    accuracy = loss.item()  # read later
    if accuracy > 3:
        best = accuracy
    print(best)


def elsewhere(loss: torch.Tensor) -> None:
    """A failure of another kind."""
    loss.item()
    torch.load("/nowhere/at/all")


if __name__ == "__main__":
    cases = {"at": at_the_read, "later": later, "elsewhere": elsewhere}
    cases[sys.argv[1]](torch.randn(8, 8, device="cuda").square().mean())
