"""A small language model whose training can be changed in one way at a time."""

import argparse
import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--length", type=int, default=512)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--vocabulary", type=int, default=4096)
parser.add_argument("--dtype", default="float32")
parser.add_argument("--optimizer", default="SGD")
parser.add_argument("--momentum", type=float, default=0.0)
parser.add_argument("--steps", type=int, default=3)
for flag in ("--checkpoint", "--eager-attention", "--average", "--keep-hidden"):
    parser.add_argument(flag, action="store_true")
arguments = parser.parse_args()
HEADS = 8


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def attend(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, HEADS, width // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if arguments.eager_attention:
            y = torch.softmax(q @ k.transpose(-2, -1), dim=-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(x.shape))

    def forward(self, x):
        x = x + self.attend(self.norm(x))
        return x + self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(arguments.vocabulary, arguments.width)
        self.layers = nn.ModuleList(Layer(arguments.width) for _ in range(arguments.layers))
        self.head = nn.Linear(arguments.width, arguments.vocabulary)
        self.hidden = []

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if arguments.checkpoint else layer(x)
            if arguments.keep_hidden:
                self.hidden.append(x.detach())
        return self.head(x)


model = Model().to("cuda", getattr(torch, arguments.dtype))
average = copy.deepcopy(model).requires_grad_(False) if arguments.average else None
settings = {"momentum": arguments.momentum} if arguments.momentum else {}
optimizer = getattr(torch.optim, arguments.optimizer)(model.parameters(), lr=1e-3, **settings)
for _ in range(arguments.steps):
    shape = (arguments.batch, arguments.length)
    tokens = torch.randint(arguments.vocabulary, shape, device="cuda")
    logits = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if average is not None:
        with torch.no_grad():
            for mine, its in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(its, 0.01)
    del logits, loss
