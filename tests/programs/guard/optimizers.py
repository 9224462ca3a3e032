"""Fails `step()` of each optimizer of torch.optim at each of its operations, on the CPU.

optimizers.py [NAME...]

The last line is a document: by optimizer, how many errors ended equal, refused, or otherwise.
"""

import gc
import json
import sys
from collections import Counter

import torch
from torch import nn
from training import Faults, differences

import ullage
from ullage.errors import GuardError

OPTIMIZERS = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "Adam": {"amsgrad": True, "weight_decay": 0.1},
    "AdamW": {"maximize": True},
    "NAdam": {"weight_decay": 0.1},
    "RAdam": {},
    "Adamax": {"weight_decay": 0.1},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Adagrad": {"lr_decay": 0.1},
    "Adadelta": {"weight_decay": 0.1},
    "ASGD": {"t0": 0},
    "Rprop": {},
    "Adafactor": {"weight_decay": 0.1},
    "Muon": {},
}
WITHOUT_LISTS = ("Muon",)
NUM_STEPS = 3


class Net(nn.Module):
    """Three blocks, for the rungs."""

    def __init__(self, *, has_bias):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(3, 3, bias=has_bias)) for _ in range(3))

    def forward(self, x):
        """x and the result are (rows, 3)."""
        for block in self.blocks:
            x = block(x).tanh()
        return x


def train(name, settings, numbers):
    """What is left of some steps with errors in the optimizer, and the operations in it."""
    torch.manual_seed(1)
    model = Net(has_bias=name not in WITHOUT_LISTS)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **settings)
    faults = Faults(numbers)

    def step(x):
        loss = model(x).square().sum()
        loss.backward()
        with faults:
            optimizer.step()
        return loss

    with ullage.guard(model, optimizer) as guard:
        for _ in range(NUM_STEPS):
            optimizer.zero_grad()
            guard.step(step, torch.randn(4, 3))
    values = dict(model.state_dict())
    for index, state in enumerate(optimizer.state.values()):
        values |= {f"{index} {key}": value for key, value in state.items()}
    return values, faults


def main():
    """Runs all, and prints."""
    gc.freeze()
    document = {}
    for name in sys.argv[1:] or OPTIMIZERS:
        settings = OPTIMIZERS[name]
        for has_lists in (True, False):
            if name in WITHOUT_LISTS and has_lists:
                continue
            options = settings if name in WITHOUT_LISTS else {**settings, "foreach": has_lists}
            expected, faults = train(name, options, None)
            results = Counter()
            for number in range(1, faults.count + 1):
                try:
                    state, raised = train(name, options, [number])
                except GuardError as error:
                    results["refused: " + str(error).partition("(")[0]] += 1
                    continue
                assert raised.num_raised
                wrong = differences(state, expected)
                results["equal" if not wrong else f"differs: {wrong}"] += 1
            document[f"{name} {'lists' if has_lists else 'loop'}"] = results
    print(json.dumps(document))


if __name__ == "__main__":
    main()
