"""Blocks of GPT-2 in bfloat16, with linear layers as they are or in float8: `float8.py RECIPE`."""

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples" / "gpt2"))

from train import GPT, VOCAB_SIZE

ROWS, LENGTH, STEPS = 8, 1024, 3


def main() -> None:
    """Train a few steps on the square of what the last block gives: no logits hide the blocks."""
    torch.manual_seed(0)
    model = GPT(dim=1024, num_heads=16).to("cuda", torch.bfloat16)
    recipe = sys.argv[1]
    if recipe != "none":
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        convert_to_float8_training(model.blocks, config=Float8LinearConfig.from_recipe_name(recipe))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(STEPS):
        x = model.token_embedding(torch.randint(VOCAB_SIZE, (ROWS, LENGTH), device="cuda"))
        for block in model.blocks:
            x = block(x)
        x.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
