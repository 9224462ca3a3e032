"""Doubles the batch of a GPT at every step, until a GPU of up to 180 GiB is full."""

import argparse

import torch
from model import GPT, train_step


def main() -> None:
    """Train with a growing batch; one line per step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8, help="of the first step")
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = GPT().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(args.steps):
        batch_size = args.batch_size * 2**step
        loss = train_step(model, optimizer, batch_size)
        print(f"step {step}  batch {batch_size}  loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
