"""A leak that everybody has written: a list of losses that keeps every graph alive.

After each training step the validation loss is appended to a list, for a mean at the end. It was
computed with gradients on and never saw a backward, so it holds all that its forward saved, and the
memory grows by the same amount every step. --detach appends the number instead.

    python examples/growing_losses/train.py --steps 20
    ullage run --gpu t4 -- examples/growing_losses/train.py --steps 20
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def make_batch(batch_size: int) -> tuple[Tensor, Tensor]:
    """Made-up images of 1024 pixels in 1024 classes."""
    images = torch.randn(batch_size, 1024, device="cuda")
    return images, torch.randint(0, 1024, (batch_size,), device="cuda")


def main() -> None:
    """Train for a few steps; one line per step, with what is allocated after it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--detach", action="store_true", help="keep the number, not the graph")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 1024)
    ).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    held_out_images, held_out_labels = make_batch(args.batch_size)
    losses = []
    for step in range(args.steps):
        images, labels = make_batch(args.batch_size)
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

        loss = F.cross_entropy(model(held_out_images), held_out_labels)
        losses.append(loss.item() if args.detach else loss)
        del images, labels, loss
        print(f"step {step}  allocated {torch.cuda.memory_allocated():,}", flush=True)
    print(f"mean validation loss {float(sum(losses) / args.steps):.4f}")


if __name__ == "__main__":
    main()
