"""Modules with a width of their own each, so that the size of a block says whose it has to be.

Prints {size in bytes: path of the module, or null}, for the blocks of every size that is listed.
"""

import json
import sys
import threading

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

# The allocator hands out up to 1 MiB more than was asked for: less than what sizes differ by.
UNIT = 1536 * 1024 // 4
expected = {}


class Wide(nn.Module):
    """Makes blocks of `width` units in forward and in backward, whatever comes in."""

    num = 2

    def __init__(self, path, inner=None):
        super().__init__()
        Wide.num += 1
        self.scale = nn.Parameter(torch.randn(Wide.num * UNIT))
        self.inner = inner
        self.fails = False
        expected[self.scale.nbytes] = path

    def forward(self, x):
        if self.fails:
            raise ValueError("on purpose")
        if self.inner is not None:
            x = self.inner(x)
        return (x + self.scale).sin().exp().mean(0, keepdim=True)


class InBackward(torch.autograd.Function):
    """Calls a module in its backward."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        with torch.no_grad():
            return grad + 0 * ctx.module(grad), None


class Model(nn.Module):
    """All ways in which modules are called."""

    def __init__(self, prefix=""):
        super().__init__()
        self.plain = Wide(f"{prefix}plain")
        self.layers = nn.ModuleList(Wide(f"{prefix}layers.{number}") for number in range(3))
        self.nested = Wide(f"{prefix}nested", Wide(f"{prefix}nested.inner"))
        self.wrapped = checkpoint_wrapper(Wide(f"{prefix}wrapped"))
        self.hidden = nn.DataParallel(Wide(f"{prefix}hidden"))
        self.late = Wide(f"{prefix}late")
        self.failing = Wide(f"{prefix}failing")

    def forward(self, x):
        x = self.plain(x)
        x = checkpoint(self.layers[0], x, use_reentrant=False)
        x = checkpoint(self.layers[1], x, use_reentrant=True)
        x = self.layers[2](x)
        x = self.nested(x)
        x = self.wrapped(x)
        x = self.hidden(x)
        x = InBackward.apply(x, self.late)
        self.failing.fails = True
        try:
            self.failing(x)
        except ValueError:
            self.failing.fails = False
        return self.failing(x)


def allocate(units):
    """A block of a size that no module has, which belongs to none."""
    block = torch.zeros(units * UNIT, device="cuda")
    expected[block.nbytes] = None
    return block


def main():
    model = Model("Model." if "two" in sys.argv else "").cuda()
    other = Wide("Wide").cuda() if "two" in sys.argv else None
    x = torch.ones(1, device="cuda", requires_grad=True)
    first, second = model(x), model(x)  # two graphs at once, the older one goes last
    kept = [allocate(40)]
    second.backward()
    first.backward()
    try:
        model.failing.fails = True
        checkpoint(model.failing, x, use_reentrant=False)
    except ValueError:
        kept.append(allocate(41))
    thread = threading.Thread(target=lambda: model.plain(x).backward())
    thread.start()
    thread.join()
    (grad,) = torch.autograd.grad(model.plain(x), x, create_graph=True)
    grad.backward()
    if other is not None:
        other(x).backward()
    kept.append(allocate(42))
    print(json.dumps(expected))


main()
