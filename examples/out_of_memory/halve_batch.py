"""Starts with a batch that fits no GPU and halves it each time memory runs out, then trains on."""

import argparse

import torch
from model import GPT, train_step


def fits(model: GPT, optimizer: torch.optim.Optimizer, batch_size: int) -> bool:
    """Whether one step on such a batch has room; leaves no trace of a step that had none."""
    try:
        train_step(model, optimizer, batch_size)
    except torch.cuda.OutOfMemoryError:
        pass  # what follows must be outside: here the traceback still holds the step's tensors
    else:
        return True
    optimizer.zero_grad()
    torch.cuda.empty_cache()
    return False


def main() -> None:
    """Train with the largest power of two that fits; one line per try and per step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=256, help="to begin with")
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = GPT().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    batch_size = args.batch_size
    while not fits(model, optimizer, batch_size):
        if batch_size == 1:
            raise SystemExit("not even one sequence fits")
        print(f"batch {batch_size} does not fit, trying {batch_size // 2}", flush=True)
        batch_size //= 2
    for step in range(args.steps):
        loss = train_step(model, optimizer, batch_size)
        print(f"step {step}  batch {batch_size}  loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
