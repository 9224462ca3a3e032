"""A residual network of 20 blocks on 32 x 32 images, with and without activation checkpointing.

Without, every block keeps the four feature maps that its backward needs. With --checkpoint a block
keeps its input alone and computes the rest again in backward, one block at a time: far less memory
for a third more arithmetic (Chen et al. 2016, arXiv:1604.06174).

    python examples/residual_net/train.py --checkpoint
    ullage run --gpu t4 -- examples/residual_net/train.py --checkpoint
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Two 3 x 3 convolutions, each behind a batch norm and a ReLU, and a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x and the result are (batch, width, height, width of the image)."""
        y = self.conv1(F.relu(self.norm1(x)))
        return x + self.conv2(F.relu(self.norm2(y)))


class ResidualNet(nn.Module):
    """A convolution, the blocks, and a linear classifier of the mean over the image."""

    def __init__(self, num_blocks: int, width: int, *, use_checkpoint: bool) -> None:
        super().__init__()
        self.use_checkpoint = use_checkpoint
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(Block(width) for _ in range(num_blocks))
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """The logits (batch, 10) of images (batch, 3, 32, 32)."""
        x = self.stem(images)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.use_checkpoint else block(x)
        return self.head(x.mean(dim=(2, 3)))


def main() -> None:
    """Train for a few steps; one line per step, with what forward left for backward."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--checkpoint", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = ResidualNet(args.blocks, args.width, use_checkpoint=args.checkpoint).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(args.steps):
        images = torch.randn(args.batch_size, 3, 32, 32, device="cuda")
        labels = torch.randint(0, 10, (args.batch_size,), device="cuda")
        before = torch.cuda.memory_allocated()
        loss = F.cross_entropy(model(images), labels)
        kept = torch.cuda.memory_allocated() - before
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        peak = torch.cuda.max_memory_allocated()
        text = f"step {step}  loss {loss.item():.4f}"
        print(f"{text}  kept for backward {kept:,}  peak {peak:,}", flush=True)


if __name__ == "__main__":
    main()
