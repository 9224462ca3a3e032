"""Where the memory of a step goes: an MLP in float32 that says what it holds after each phase.

The parameters come with .to(), the saved activations with forward; backward trades these for the
gradients, and Adam's first step adds its two states per parameter. From the second step on a
forward pass begins with all of them there.

    python examples/mlp_phases/train.py --batch-size 1024
    ullage run --gpu t4 -- examples/mlp_phases/train.py --batch-size 1024
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def report(phase: str) -> None:
    """One line: what is allocated now, and the most since the last line."""
    now, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    print(f"{phase:<18} allocated {now:>12,}  peak {peak:>12,}", flush=True)
    torch.cuda.reset_peak_memory_stats()


def main() -> None:
    """Train for a few steps; one line per phase."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(1024, args.width),
        nn.ReLU(),
        nn.Linear(args.width, args.width),
        nn.ReLU(),
        nn.Linear(args.width, 1024),
    )
    report("init")
    model.to("cuda")
    report("to device")
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(args.steps):
        images = torch.randn(args.batch_size, 1024, device="cuda")
        labels = torch.randint(0, 1024, (args.batch_size,), device="cuda")
        report(f"step {step}  input")
        loss = F.cross_entropy(model(images), labels)
        report(f"step {step}  forward")
        loss.backward()
        report(f"step {step}  backward")
        optimizer.step()
        report(f"step {step}  update")
        optimizer.zero_grad()
        del images, labels, loss
        report(f"step {step}  zero_grad")


if __name__ == "__main__":
    main()
