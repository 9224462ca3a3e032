"""Uses what stands for a tensor with a graph that is gone, and prints what each use came to: the
name of the error, or "passed".
"""

import json

import torch

from ullage.act.guard.state.lost import Weak


class Unread(torch.autograd.Function):
    """Does not read its input."""

    @staticmethod
    def forward(ctx, x):
        return torch.zeros(3)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Doubled(Unread):
    """Reads it."""

    @staticmethod
    def forward(ctx, x):
        return x * 2


def stand_in():
    """Of a tensor with a graph that is gone."""
    kept = Weak(torch.ones(3, requires_grad=True) * 2)
    return kept.value


def set_data(lost):
    """Gives the data to another tensor, and reads that."""
    other = torch.ones(3)
    other.data = lost
    return other + 1


def set_gradient(lost):
    """Gives it to a weight as its gradient, and makes a step."""
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = lost
    torch.optim.SGD([weight], 0.1).step()


USES = {
    "an operation": lambda lost: lost + 1,
    "a read": lambda lost: lost.sum().item(),
    "Function.apply": Doubled.apply,
    "backward of a function": lambda lost: Unread.apply(lost).sum().backward(),
    "torch.Tensor": torch.Tensor,
    "torch.FloatTensor": torch.FloatTensor,
    "torch.tensor": torch.tensor,
    "torch.as_tensor": lambda lost: torch.as_tensor(lost) + 1,
    "new": lambda lost: torch.ones(1).new(lost),
    "new_tensor": lambda lost: torch.ones(1).new_tensor(lost),
    "as_subclass": lambda lost: lost.as_subclass(torch.Tensor),
    "set_": lambda lost: torch.ones(3).set_(lost),
    "data": set_data,
    "a gradient": set_gradient,
    "a gradient of backward": lambda lost: torch.ones(3, requires_grad=True).backward(lost),
}


def end_of(use):
    """The name of the error."""
    try:
        use(stand_in())
    except Exception as error:
        return type(error).__name__
    return "passed"


print(json.dumps({name: end_of(use) for name, use in USES.items()}))
