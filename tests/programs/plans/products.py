"""Counts what a step computes under plans that save products: products.py SOURCE COUNTED CASES

SOURCE is that of ullage, COUNTED the directory of counted.py, CASES a list in JSON:

["chain", HOW, BUDGET, SAVES]   a chain of blocks, each two products with a tanh between, compiled
                                as one ("whole"), block by block ("blocks") or not at all
                                ("nothing"), with an activation memory budget
["attention", DROPOUT, SAVES]   a layer whose attention is not causal

SAVES is what a plan has the blocks save, or null: there is no plan. The last line is a list, a
document a case: the products (multiplied and added up) and graphs, or how often attention was
computed; or the refusal.
"""

import json
import sys

import torch
import torch._functorch.config as partitioning
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

sys.path[:0] = sys.argv[1:3]
from counted import Counted

from ullage.act.techniques.applying.apply import describe_program
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action
from ullage.ground.errors import PlanError

BLOCKS, ROWS, WIDTH = 4, 64, 256
PRODUCT = 2 * ROWS * WIDTH * WIDTH
BATCH, HEADS, TOKENS, FEATURES = 2, 4, 64, 64


def steps(model, inputs, saves, begin):
    """Two steps under a plan, and what is counted anew at the beginning of each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    modules = tuple(name for name, _ in model.named_children())
    actions = () if saves is None else (Action("selective_checkpoint", modules, {"saves": saves}),)
    with Plan(actions, describe_program(model, optimizer)).applied(model, optimizer):
        for _ in range(2):
            begin()
            model(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def chain(how, budget, saves):
    """The products of a step, and how many graphs were compiled."""
    torch._dynamo.reset()
    partitioning.activation_memory_budget = budget
    counted = Counted()
    model = nn.Sequential(
        *(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
            for _ in range(BLOCKS)
        )
    ).cuda()
    for one in {"blocks": model, "whole": [model], "nothing": []}[how]:
        one.compile(backend=counted.compile)
    inputs = torch.zeros(ROWS, WIDTH, device="cuda").requires_grad_()
    steps(model, inputs, saves, counted.begin_step)
    flops = sum(flops * num for _, _, flops, _, num in counted.operations())
    return {"products": flops / PRODUCT, "graphs": counted.num_graphs}


class Attention(nn.Module):
    """Self-attention."""

    def __init__(self, dropout):
        super().__init__()
        self.inner, self.outer = nn.Linear(FEATURES, 3 * FEATURES), nn.Linear(FEATURES, FEATURES)
        self.dropout = dropout

    def forward(self, x):
        """x and the result are (BATCH, TOKENS, FEATURES)."""
        heads = self.inner(x).view(BATCH, TOKENS, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(*heads, dropout_p=self.dropout)
        return self.outer(found.transpose(1, 2).reshape(BATCH, TOKENS, FEATURES))


class Counts(TorchDispatchMode):
    """Counts attention, forward."""

    count = 0

    def begin(self):
        """Anew."""
        self.count = 0

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        name = function._schema.name
        self.count += "scaled_dot_product" in name and "backward" not in name
        return function(*args, **(kwargs or {}))


def attention(dropout, saves):
    """How often a step computes it."""
    model = nn.Sequential(Attention(dropout)).to("cuda", torch.bfloat16)
    inputs = torch.zeros(BATCH, TOKENS, FEATURES, device="cuda", dtype=torch.bfloat16)
    with Counts() as counts:
        steps(model, inputs, saves, counts.begin)
    return {"attention": counts.count}


def main():
    """Counts each case."""
    found = []
    for name, *words in json.loads(sys.argv[3]):
        try:
            found.append({"chain": chain, "attention": attention}[name](*words))
        except (PlanError, BackendCompilerFailed) as error:  # the compiler makes it of ours
            found.append({"refused": str(error)})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
