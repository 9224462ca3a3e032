"""Runs out of memory; shows its exceptions itself, as programs with pretty tracebacks do."""

import sys

import torch


def show(kind: type[BaseException], error: BaseException, _traceback: object) -> None:
    """One line instead of a traceback."""
    print(f"own hook: {kind.__name__}: {str(error)[:40]}", file=sys.stderr)


if __name__ == "__main__":
    sys.excepthook = show
    block = torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")
    torch.empty(2**50, dtype=torch.uint8, device="cuda")
