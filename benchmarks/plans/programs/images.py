"""Train a model of timm with random weights for a few steps: `images.py MODEL BATCH`.

A plain loop with bf16 autocast and AdamW.
"""

from __future__ import annotations

import argparse

import timm
import torch

STEPS, SIDE, CLASSES = 3, 224, 1000


def main() -> None:
    """A few steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("batch", type=int)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = timm.create_model(args.model, num_classes=CLASSES).to("cuda").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        images = torch.randn(args.batch, 3, SIDE, SIDE, device="cuda")
        labels = torch.randint(0, CLASSES, (args.batch,), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
