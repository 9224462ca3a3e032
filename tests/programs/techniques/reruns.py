"""Modules whose second run could differ from their first, under techniques that run them twice.

The last line is a document: for each module and technique "equal", the refusal, or what differs;
and what checkpoints are told about the devices of arguments.
"""

import json
import random
import types

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from ullage.errors import PlanError
from ullage.techniques import flash_attention
from ullage.techniques.applying.apply import describe_program
from ullage.techniques.plan import Plan
from ullage.techniques.technique import Action

WIDTH = 8


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)


class Counts(Layer):
    """Computes something else at every second call."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return torch.tanh(self.layer(x)) if self.calls % 2 else self.layer(x).sin()


class Collects(Layer):
    """Keeps what it has seen, and computes by how much that is."""

    def __init__(self):
        super().__init__()
        self.seen = {"norms": []}

    def forward(self, x):
        self.seen["norms"].append(x.detach().norm())
        return torch.tanh(self.layer(x)) / len(self.seen["norms"])


class Routes(Layer):
    """Leaves a loss behind, as routers do."""

    def forward(self, x):
        self.aux_loss = torch.tanh(self.layer(x)).square().mean()
        return torch.tanh(self.layer(x))


class DrawsByPython(Layer):
    def forward(self, x):
        return torch.tanh(self.layer(x)) if random.random() < 0.5 else self.layer(x).sin()


class DrawsByNumpy(Layer):
    def forward(self, x):
        return torch.tanh(self.layer(x)) * np.random.rand()


class ReadsContext(Layer):
    """Reads what its caller puts on it, something else before each call."""

    context = 0.0

    def forward(self, x):
        return torch.tanh(self.layer(x) * self.context)


class SumsInPlace(Layer):
    """Adds to a tensor that is no buffer."""

    def __init__(self):
        super().__init__()
        self.total = torch.zeros(())

    def forward(self, x):
        self.total += 1
        return torch.tanh(self.layer(x)) * self.total.clone()


class AddsInPlace(nn.Module):
    """Adds to the result of a product, which is what is worth keeping."""

    def __init__(self):
        super().__init__()
        self.layer, self.more = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.layer(x)
        y += x
        return self.more(y).sin()


class Model(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.before, self.block = nn.Linear(WIDTH, WIDTH), block()

    def forward(self, x):
        x = self.before(x)
        for number in range(3):
            if hasattr(self.block, "context"):
                self.block.context = 1.0 + number
            x = self.block(x)
        return x.square().mean() + getattr(self.block, "aux_loss", 0.0)


class AddsAfter(Model):
    """Adds to what the block returns, in place."""

    def forward(self, x):
        x = self.before(x)
        y = self.block(x)
        y += x
        return y.square().mean()


def train(model_of, block, technique):
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = model_of(block).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    actions = () if technique is None else (Action(technique, ("block",)),)
    losses = []
    try:
        with Plan(actions, describe_program(model, optimizer)).applied(model, optimizer):
            for _ in range(3):
                optimizer.zero_grad()
                loss = model(torch.randn(2, 3, WIDTH, dtype=torch.float64))
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
    except PlanError as error:
        return str(error)
    left = repr((random.random(), np.random.rand(), len(getattr(model.block, "seen", {}))))
    norms = getattr(model.block, "seen", {"norms": []})["norms"]
    return [*losses, *norms, *(one.detach() for one in model.parameters())], left


def outcome(model_of, block, technique):
    found, expected = train(model_of, block, technique), train(model_of, block, None)
    if isinstance(found, str):
        return found
    are_as_many = len(found[0]) == len(expected[0])
    are_equal = are_as_many and all(map(torch.allclose, found[0], expected[0]))
    return "equal" if are_equal and found[1] == expected[1] else "different"


class ByName(Layer):
    """Is called by keywords alone."""

    def forward(self, *, hidden):
        return torch.tanh(self.layer(hidden))


def devices_told():
    """The devices of the tensors that torch's checkpoint looks for random numbers of."""
    import torch.utils.checkpoint as checkpoint

    told = []
    look = checkpoint.get_device_states

    def note(*arguments):
        found = torch.utils._pytree.tree_leaves(arguments)
        told.extend(str(one.device) for one in found if isinstance(one, torch.Tensor))
        return look(*arguments)

    checkpoint.get_device_states = note
    module = types.SimpleNamespace(_initialized=True, get_rng_state=torch.get_rng_state)
    checkpoint._get_device_module = lambda _: module
    model = nn.ModuleDict({"block": ByName()})
    with Plan((Action("checkpoint", ("block",)),), describe_program(model, None)).applied(model):
        model["block"](hidden=torch.randn(2, WIDTH, requires_grad=True))
    return told


def eager_attention_forward(module, query, key, value, mask, scaling, **_):
    """Attention written out, with what a module wants of it."""
    scores = query @ key.mT * scaling
    if module.cap:
        scores = module.cap * torch.tanh(scores / module.cap)
    weights = (scores if mask is None else scores + mask).softmax(-1)
    if module.sink:
        weights = weights * 0.9
    return (weights @ value).transpose(1, 2), weights


class Attends(nn.Module):
    is_causal, cap, sink = True, 0.0, False


def attention(**settings):
    """Whether the fused kernels are found to compute what attention with these settings does."""

    def fused(module, query, key, value, mask, scaling, **_):
        found = F.scaled_dot_product_attention(
            query, key, value, mask, scale=scaling, is_causal=mask is None and module.is_causal
        )
        return found.transpose(1, 2), None

    module = Attends()
    vars(module).update(settings)
    given = [torch.randn(1, 2, 3, 4) for _ in range(3)]
    try:
        flash_attention._compare(fused, module, tuple(given), None, {"scaling": 0.5})
    except PlanError as error:
        return str(error)
    return "equal"


def main():
    torch.set_num_threads(1)
    blocks = (
        Counts, Collects, Routes, DrawsByPython, DrawsByNumpy, ReadsContext, SumsInPlace,
        AddsInPlace,
    )  # fmt: skip
    techniques = ("checkpoint", "selective_checkpoint")
    found = {
        f"{block.__name__}, {one}": outcome(Model, block, one)
        for block in blocks
        for one in techniques
    }
    for one in techniques:
        found[f"AddsAfter, {one}"] = outcome(
            AddsAfter, lambda: nn.Linear(WIDTH, WIDTH, bias=False), one
        )
    print(
        json.dumps(
            {
                "modules": found,
                "devices": devices_told(),
                "attention": {
                    "plain": attention(),
                    "capped": attention(cap=3.0),
                    "with a sink": attention(sink=True),
                },
            }
        )
    )


main()
