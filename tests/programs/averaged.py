"""Four training steps with an average of the weights beside them; the argument says how it is kept.

Prints the bytes of the averages.
"""

import copy
import json
import sys

import torch
from torch import nn


def make_model() -> nn.Module:
    """Layers of 4 MiB."""
    return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]).cuda()


def deepcopied(model: nn.Module) -> list[torch.Tensor]:
    """A copy of the whole model, as DiT has it."""
    global average
    average = copy.deepcopy(model).requires_grad_(False).eval()
    return list(average.parameters())


def averaged_model(model: nn.Module) -> list[torch.Tensor]:
    """torch's own."""
    global average
    average = torch.optim.swa_utils.AveragedModel(model)
    return list(average.parameters())


def cloned(model: nn.Module) -> list[torch.Tensor]:
    """A list, as diffusers' EMAModel has it."""
    return [one.detach().clone() for one in model.parameters()]


def named(model: nn.Module) -> dict[str, torch.Tensor]:
    """A dict by name."""
    return {name: one.detach().clone() for name, one in model.named_parameters()}


def main() -> None:
    """Trains; after each step the average moves."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    copies = globals()[sys.argv[1]](model)
    averages = list(copies.values()) if isinstance(copies, dict) else copies
    for _ in range(4):
        gradients = torch.autograd.grad(
            model(torch.randn(4096, 1024, device="cuda")).sum(), list(model.parameters())
        )
        for one, gradient in zip(model.parameters(), gradients, strict=True):
            one.grad = gradient
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for one, average in zip(model.parameters(), averages, strict=True):
                average.mul_(0.9).add_(one, alpha=0.1)
    print(json.dumps({"bytes": sum(one.nbytes for one in averages)}))


main()
