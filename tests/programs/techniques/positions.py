"""Which modules are proved to treat each position by itself, and why the others are not.

The last line is a document: for each module the reason, "" where it is proved.
"""

import gc
import json
import weakref

import torch
from torch import nn
from torch.nn import functional as F

from ullage.act.techniques.means.positionwise import why_not

WIDTH, LENGTH = 16, 12
proved, refused = {}, {}


def of(table, *made):
    """Puts a module made of a function of it and its input into a table, under its name."""

    def put(function):
        class Module(nn.Module):
            def __init__(self):
                super().__init__()
                for number, one in enumerate(made):
                    setattr(self, f"part{number}", one)

            forward = function

        table[function.__name__] = Module()
        return function

    return put


def linear(out=WIDTH, given=WIDTH):
    return nn.Linear(given, out)


def zeroed(layer):
    for one in layer.parameters():
        nn.init.zeros_(one)
    return layer


@of(proved, linear(64), linear(given=64))
def plain(self, x):
    return self.part1(F.gelu(self.part0(x)))


@of(proved, nn.LayerNorm(WIDTH), linear(64), linear(64), linear(given=64))
def gated_with_norm_and_residual(self, x):
    y = self.part0(x)
    return x + self.part3(F.silu(self.part1(y)) * self.part2(y))


@of(proved, nn.RMSNorm(WIDTH), linear())
def in_place_activation(self, x):
    return self.part1(self.part0(x)).relu_()


@of(proved, linear(2 * WIDTH))
def halves(self, x):
    one, other = self.part0(x).chunk(2, -1)
    return one * torch.sigmoid(other)


@of(proved, linear())
def flattened_tokens(self, x):
    batch, length, width = x.shape
    return self.part0(x.reshape(batch * length, width)).view(batch, length, width)


@of(proved, linear())
def heads_there_and_back(self, x):
    batch, length, width = x.shape
    heads = self.part0(x).view(batch, length, 4, width // 4).transpose(1, 2)
    return heads.transpose(1, 2).reshape(batch, length, width)


@of(proved, linear())
def einsum(self, x):
    return torch.einsum("bld,ed->ble", x, self.part0.weight)


@of(proved, linear(4), nn.ModuleList(linear() for _ in range(4)))
def soft_mixture(self, x):
    shares = self.part0(x).softmax(-1)
    return sum(shares[..., i : i + 1] * one(x) for i, one in enumerate(self.part1))


@of(proved, nn.Dropout(0.0), linear())
def dropout_of_nothing(self, x):
    return self.part0(self.part1(x))


@of(refused, linear(3 * WIDTH), zeroed(linear()))
def attention_whose_projection_is_zero(self, x):
    q, k, v = self.part0(x).chunk(3, -1)
    return x + self.part1((q @ k.mT).softmax(-1) @ v)


@of(refused, linear(3 * WIDTH), zeroed(linear()))
def fused_attention_whose_projection_is_zero(self, x):
    q, k, v = (one.unsqueeze(1) for one in self.part0(x).chunk(3, -1))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return x + self.part1(y.squeeze(1))


@of(refused, nn.Conv1d(WIDTH, WIDTH, 3, padding=2))
def causal_convolution(self, x):
    return self.part0(x.mT)[..., :-2].mT


@of(refused)
def cumulative_sum(self, x):
    return x.cumsum(1)


@of(refused)
def statistics_of_the_sequence(self, x):
    return x - x.mean(1, keepdim=True)


@of(refused)
def norm_over_the_sequence(self, x):
    return x / x.norm(dim=-2, keepdim=True)


@of(refused, nn.Embedding(64, WIDTH))
def table_of_positions(self, x):
    return x + self.part0.weight[: x.shape[1]]


@of(refused, nn.Embedding(64, WIDTH))
def looked_up_positions(self, x):
    return x + self.part0(torch.arange(x.shape[1]))


@of(refused)
def divided_by_their_number(self, x):
    return x / x.shape[1]


@of(refused)
def branch_on_their_number(self, x):
    return x * 2 if x.shape[1] > LENGTH // 2 else x.exp()


@of(refused)
def rolled(self, x):
    return x.roll(1, 1)


@of(refused)
def flipped(self, x):
    return x.flip(1)


@of(refused)
def first_position_left_out(self, x):
    return torch.cat([x[:, :1] * 0, x[:, 1:]], 1)


@of(refused)
def sorted_positions(self, x):
    return x.sort(1)[0]


@of(refused, linear(2 * WIDTH, 2 * WIDTH))
def neighbours_joined(self, x):
    batch, length, width = x.shape
    return self.part0(x.reshape(batch, length // 2, 2 * width)).view(batch, length, width)


@of(refused, linear(LENGTH, LENGTH))
def mixed_by_a_weight(self, x):
    return self.part0.weight @ x


@of(refused, nn.BatchNorm1d(LENGTH))
def batch_norm(self, x):
    return self.part0(x)


@of(refused, nn.Dropout(0.1))
def dropout(self, x):
    return self.part0(x)


@of(refused)
def read_values(self, x):
    return x * x[0, 0, 0].item()


@of(refused)
def changed_input(self, x):
    return x.mul_(2)


@of(refused, linear())
def written_attribute(self, x):
    self.last = self.part0(x)
    return self.last


@of(refused, linear())
def written_parameter(self, x):
    with torch.no_grad():
        self.part0.weight.add_(1)
    return self.part0(x)


@of(refused)
def hook_on_gradients(self, x):
    y = x * 2
    y.register_hook(lambda gradient: gradient / gradient.norm())
    return y


class Normalised(torch.autograd.Function):
    """Its backward is what mixes positions."""

    @staticmethod
    def forward(context, x):
        return x * 2

    @staticmethod
    def backward(context, gradient):
        return gradient / gradient.norm()


@of(refused)
def backward_of_its_own(self, x):
    return Normalised.apply(x)


@of(refused, nn.Embedding(8, WIDTH, scale_grad_by_freq=True))
def gradient_by_frequency(self, x):
    return self.part0(x.argmax(-1) % 8)


def hooked():
    module = nn.Sequential(linear())
    module[0].register_forward_hook(lambda _, __, output: output.cumsum(1))
    return module


def jacobian_is_apart(module):
    """Whether, with random numbers, no position of the output is of another of the input: an
    oracle that knows no operators.
    """
    module = module.double()
    with torch.no_grad():
        for one in module.parameters():
            one.normal_()
    x = torch.randn(1, LENGTH, WIDTH, dtype=torch.float64)
    found = torch.autograd.functional.jacobian(module, x)[0, ..., 0, :, :].abs().sum((1, 3))
    return bool((found[~torch.eye(LENGTH, dtype=torch.bool)] == 0).all())


def is_freed():
    """Whether nothing of a module stays after the proof."""
    module = nn.Sequential(linear(), nn.ReLU(), nn.Softmax(-1))  # their results are kept
    why_not(module.forward, torch.randn(3, LENGTH, WIDTH), (LENGTH // 3,))
    weight = weakref.ref(module[0].weight)
    del module
    gc.collect()
    return weight() is None


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    refused["hook_inside"] = hooked()
    reasons = {}
    for name, module in {**proved, **refused}.items():
        x = torch.randn(3, LENGTH, WIDTH).requires_grad_() * 1
        reasons[name] = why_not(module.forward, x, (LENGTH // 3,))
    apart = {name: jacobian_is_apart(module) for name, module in proved.items()}
    found = {
        "is freed": {"weight": is_freed()},
        "proved": {name: reasons[name] for name in proved},
        "apart": apart,
        "refused": {name: reasons[name] for name in refused},
    }
    print(json.dumps(found))


main()
