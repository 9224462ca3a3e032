"""GPT-2 124M in the manner of nanoGPT: one file, compiled on demand, tokens from a memory map."""

import argparse
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from figures import print_figures
from torch import Tensor, nn
from torch.nn import functional

STEPS = 3


@dataclass
class Shape:
    """The shape of the model; the vocabulary is rounded up to a multiple of 64."""

    vocabulary: int = 50304
    length: int = 1024
    layers: int = 12
    heads: int = 12
    width: int = 768


class Block(nn.Module):
    """Causal attention and an MLP, each with a layer norm before it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm_1 = nn.LayerNorm(shape.width, bias=False)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.norm_2 = nn.LayerNorm(shape.width, bias=False)
        self.up = nn.Linear(shape.width, 4 * shape.width, bias=False)
        self.down = nn.Linear(4 * shape.width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x is (batch, length, width)."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).split(width, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    """Embeddings, blocks, and a head that shares the token embedding's weights."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.length, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width, bias=False)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * shape.layers))

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """The loss; ids and targets are (batch, length)."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Fused AdamW that lets matrices alone decay."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)


def draw_batch(text: numpy.ndarray, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Random places of the text, through pinned memory."""
    starts = torch.randint(len(text) - length - 1, (batch,)).tolist()
    rows = numpy.stack([text[start : start + length + 1].astype(numpy.int64) for start in starts])
    ids = torch.from_numpy(rows).pin_memory().to("cuda", non_blocking=True)
    return ids[:, :-1], ids[:, 1:]


def train(text: numpy.ndarray, *, is_compiled: bool) -> None:
    """STEPS steps of four micro-batches, with clipping."""
    shape = Shape()
    model = GPT(shape).to("cuda")
    optimizer = make_optimizer(model)
    run = torch.compile(model) if is_compiled else model
    for step in range(STEPS):
        for _ in range(4):
            with torch.autocast("cuda", torch.bfloat16):
                loss = run(*draw_batch(text, 12, shape.length)) / 4
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step} loss {loss.item():.4f}")
    print_figures(model, optimizer, num_steps=STEPS)


def main() -> None:
    """Write random tokens to a file and train on them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "train.bin"
        numpy.random.default_rng(0).integers(50257, size=1 << 20, dtype=numpy.uint16).tofile(path)
        train(numpy.memmap(path, dtype=numpy.uint16, mode="r"), is_compiled=args.compile)


if __name__ == "__main__":
    main()
