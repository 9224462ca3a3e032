"""The programs of same_training.py by their names."""

import random

import torch
from matrix_models import KINDS
from models import MODELS
from small_models import SMALL


def make_program(case, device="cpu"):
    """The program that a case names, ready to train on a device.

    case: its name; of those that are drawn the seed, and the loss if it is not the one drawn; of
    small ones what their functions take.
    """
    name = case["program"]
    torch.set_default_dtype(torch.float32)
    if "seed" in case:
        made = make_kind(name, case["seed"], case.get("loss"))
    elif name in SMALL:
        torch.manual_seed(0)
        made = SMALL[name](device, **case.get("options", {}))
    else:
        torch.manual_seed(1)
        made = MODELS[name]()
        with torch.no_grad():  # transformers sets hooks of its own up in the first call
            made.loss(made.model.eval(), made.batch())
    made.model.train()
    return made


def make_kind(name, seed, loss=None):
    """A model of a kind in float64, the same for the same seed, with a loss if not one drawn."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(seed)
    random.seed(seed)
    draw = random.Random(seed)
    if loss is not None:
        draw.loss = loss
    return KINDS[name](draw)
