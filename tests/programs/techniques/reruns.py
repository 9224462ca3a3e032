"""What checkpoints are told about the devices of arguments, and what attention is fused.

The last line is a document: the devices, and for each kind of attention "equal" or the refusal.
"""

import json
import types

import torch
from torch import nn
from torch.nn import functional as F

from ullage.act.techniques import flash_attention
from ullage.act.techniques.applying.apply import describe_program
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action
from ullage.ground.errors import PlanError

WIDTH = 8


class ByName(nn.Module):
    """Is called by keywords alone."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

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
    document = {
        "devices": devices_told(),
        "attention": {
            "plain": attention(),
            "capped": attention(cap=3.0),
            "with a sink": attention(sink=True),
        },
    }
    print(json.dumps(document))


main()
