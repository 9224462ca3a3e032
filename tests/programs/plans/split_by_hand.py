"""Trains a small model whose configuration says how its matrices are split, on two ranks.

split_by_hand.py

Rank 0 prints by how much two steps under tensor parallel, with clipped gradients, differ from what
one process comes to; which share of the split parameters it held meanwhile; and by how much what is
there after the plan was undone differs.
"""

import json
import os
from types import SimpleNamespace

import torch
from torch import nn

from ullage.act.techniques.applying.apply import describe_program
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action

WIDTH, STEPS = 8, 2


class Part(nn.Module):
    """A layer part with a residual."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Split(nn.Module):
    """Says how it is split as a model of transformers does."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(
            base_model_tp_plan={"parts.*.up": "colwise", "parts.*.down": "rowwise"},
            get_text_config=lambda: SimpleNamespace(num_attention_heads=2),
        )
        self.parts = nn.Sequential(Part(), Part())
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.head(self.parts(x))


def make():
    """A model and its optimizer, on every rank the same."""
    torch.manual_seed(0)
    model = Split()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model, optimizer):
    """Steps on the same rows everywhere."""
    torch.manual_seed(1)
    for _ in range(STEPS):
        model(torch.randn(4, WIDTH)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()


def distance(model, expected):
    """Of the state dicts, at most."""
    return max(
        (value - expected[name]).abs().max().item() for name, value in model.state_dict().items()
    )


def main():
    """Trains alone and under the plan."""
    torch.set_num_threads(1)
    alone, optimizer = make()
    train(alone, optimizer)
    expected = alone.state_dict()
    model, optimizer = make()
    plan = Plan((Action("tensor_parallel"),), describe_program(model, optimizer))
    with plan.applied(model, optimizer):
        train(model, optimizer)
        under = distance(model, expected)
        held = model.parts[0].up.weight.numel() / expected["parts.0.up.weight"].numel()
    found = {"under": under, "held": held, "after": distance(model, expected)}
    if os.environ["RANK"] == "0":
        print(json.dumps(found), flush=True)
    os._exit(0)  # see ranks_undone.py


if __name__ == "__main__":
    main()
