"""Small programs whose sizes, devices and faults a test chooses, and modules whose second run could
differ from their first.

made = SMALL["text"]("cuda", scale=8, rows=32)
"""

import functools
import random

import numpy as np
import torch
from made import Made
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, LENGTH, BATCH, LAYERS = 512, 64, 32, 4, 4
PADDING = -100


class Block(nn.Module):
    """A transformer's block with its attention written out."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, length, 3, 4, width // 4)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        weights = self.dropout(torch.softmax(q @ k.transpose(-1, -2) / 4, dim=-1))
        x = x + self.proj((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.dropout(self.mlp(x))


class Text(nn.Module):
    """A language model with tied weights; its logits, or its loss."""

    def __init__(self, scale=1):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH * scale)
        self.blocks = nn.ModuleList(Block(WIDTH * scale) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH * scale, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens, has_loss=True):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        if not has_loss:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())


class Image(nn.Module):
    """Convolutions with batch statistics."""

    def __init__(self, scale=1):
        super().__init__()
        layers = []
        for channels in (3, 16 * scale, 16 * scale):
            layers += [nn.Conv2d(channels, 16 * scale, 3, padding=1), nn.BatchNorm2d(16 * scale)]
            layers += [nn.ReLU(), nn.Dropout(0.1)]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(16 * scale, 10)

    def forward(self, images):
        return self.head(self.features(images).mean((2, 3))).square().mean()


def language(model, loss, device, scale=1, rows=BATCH, dropout=None, spoils=False):
    """A language model; with another rate of dropout; that changes the input of a norm in place."""
    for module in model.modules():
        if isinstance(module, nn.Dropout) and dropout is not None:
            module.p = dropout
    if spoils:
        model.spoiled = None
        model.blocks[1].norm.register_forward_hook(
            lambda _, given, __: setattr(model, "spoiled", given[0].mul_(2))
        )
    names = tuple(f"blocks.{number}" for number in range(LAYERS))
    return Made(
        model.to(device),
        lambda: torch.randint(VOCABULARY, (rows, LENGTH * scale)).to(device),
        loss,
        names[:-1],
        tuple(f"{name}.mlp" for name in names),
    )


def text(device, scale=1, **options):
    """The model takes its loss."""

    def loss(model, tokens):
        return model(tokens)

    return language(Text(scale), loss, device, scale, **options)


def plain(device, scale=1, **options):
    """The program takes the loss of the model's logits."""

    def loss(model, tokens):
        return F.cross_entropy(model(tokens, False).transpose(1, 2), tokens.roll(-1, 1))

    return language(Text(scale), loss, device, scale, **options)


def small_llama(device, scale=1, leaves_out=False, **options):
    """A model of transformers, called as its users do; some labels may be left out of the loss."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY * scale, hidden_size=WIDTH, intermediate_size=4 * WIDTH,
        num_hidden_layers=2, num_attention_heads=4, attn_implementation="eager",
    )  # fmt: skip

    def loss(model, tokens):
        labels = tokens.clone()
        if leaves_out:
            labels[0, 3:] = PADDING
        return model(tokens, labels=labels).loss

    return language(LlamaForCausalLM(config), loss, device, scale, **options)


def image(device):
    """Pictures."""
    return Made(
        Image().to(device),
        lambda: torch.randn(BATCH, 3, 16, 16).to(device),
        lambda model, images: model(images),
        tuple(f"features.{index}" for index in range(12)),
        chains=("features",),
    )


def chain(_):
    """Layers one after another, in float64."""
    layers = nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 8), nn.Linear(8, 4)
    model = nn.Sequential(*layers).double()
    model.losses = []  # a way of ways.py counts there
    return Made(
        model,
        lambda: torch.randn(3, 4, dtype=torch.float64),
        lambda model, x: model(x).square().mean(),
        rate=0.1,
    )


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)


class Counts(Layer):
    """Computes something else at every second call."""

    def __init__(self):
        super().__init__()
        self.calls = 0

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

    def __init__(self):
        super().__init__()
        self.aux_loss = None

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

    def __init__(self):
        super().__init__()
        self.context = 0.0

    def forward(self, x):
        return torch.tanh(self.layer(x) * self.context)


class SumsInPlace(Layer):
    """Adds to a tensor that is no buffer."""

    def __init__(self):
        super().__init__()
        self.total = torch.zeros((), dtype=torch.float64)

    def forward(self, x):
        self.total += 1
        return torch.tanh(self.layer(x)) * self.total.clone()


class AddsInPlace(Layer):
    """Adds to the result of a product, which is what is worth keeping."""

    def __init__(self):
        super().__init__()
        self.more = nn.Linear(8, 8)

    def forward(self, x):
        y = self.layer(x)
        y += x
        return self.more(y).sin()


class AddsAfter(Layer):
    """Its caller adds to what it returns, in place."""

    def forward(self, x):
        return F.linear(x, self.layer.weight)


class Runs(nn.Module):
    """A block that is called three times."""

    def __init__(self, block):
        super().__init__()
        self.before, self.block = nn.Linear(8, 8), block()

    def forward(self, x):
        x = self.before(x)
        for number in range(3):
            if isinstance(self.block, ReadsContext):
                self.block.context = 1.0 + number
            given, x = x, self.block(x)
            if isinstance(self.block, AddsAfter):
                x += given
        loss = x.square().mean()
        return loss + self.block.aux_loss if isinstance(self.block, Routes) else loss


def runs_again(block, _):
    """A block of those above, in float64."""
    return Made(
        Runs(block).double(),
        lambda: torch.randn(2, 3, 8, dtype=torch.float64),
        lambda model, x: model(x),
        ("block",),
        rate=0.1,
        more=lambda model: model.block.seen["norms"] if block is Collects else (),
    )


AGAIN = (
    Counts, Collects, Routes, DrawsByPython, DrawsByNumpy, ReadsContext, SumsInPlace, AddsInPlace,
    AddsAfter,
)  # fmt: skip
SMALL = {one.__name__: one for one in (text, plain, image, small_llama, chain)} | {
    one.__name__: functools.partial(runs_again, one) for one in AGAIN
}
