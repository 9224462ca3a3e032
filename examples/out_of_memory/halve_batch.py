"""Starts with too large a batch and halves it each time memory runs out, then trains on."""

import argparse

import torch
from model import GPT, train_step


def try_step(model: GPT, optimizer: torch.optim.Optimizer, batch_size: int) -> float | None:
    """One step's loss; None, and no trace of the step, if it had no room."""
    try:
        return train_step(model, optimizer, batch_size)
    except torch.cuda.OutOfMemoryError:
        pass  # what follows must be outside: here the traceback still holds the step's tensors
    optimizer.zero_grad()
    torch.cuda.empty_cache()
    return None


def main() -> None:
    """Train with the largest power of two that fits; one line per try and per step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=256, help="to begin with")
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = GPT().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    batch_size, step = args.batch_size, 0
    while step < args.steps:
        loss = try_step(model, optimizer, batch_size)
        if loss is not None:
            print(f"step {step}  batch {batch_size}  loss {loss:.4f}", flush=True)
            step += 1
        elif batch_size > 1:
            batch_size //= 2
            print(f"out of memory, trying batch {batch_size}", flush=True)
        else:
            raise SystemExit("not even one sequence fits")


if __name__ == "__main__":
    main()
