"""Passes of a transformer that is written out in einsum: basic_transformer.py SNAPSHOT CASE

"training" records the sixth training step of a model of 24 layers, "first-passes" the first five
passes of one of 12 layers without gradients, "later-pass" the sixth pass of one of 32 layers.
"""

# ruff: noqa: RET504 - a name keeps its tensor alive, as in the program that was recorded

import math
import sys

import torch
from torch import nn

VOCAB, BATCH = 10_000, 4


class Linear(nn.Module):
    def __init__(self, width_in, width_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width_out, width_in))

    def forward(self, x):
        return torch.einsum("...i,oi->...o", x, self.weight)


class Embedding(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(VOCAB, width))

    def forward(self, ids):
        return self.weight[ids, :]


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * scale
        return self.weight * x


class Rotation(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        angles = torch.zeros(length, width // 2)
        turns = torch.stack((torch.cos(angles), torch.sin(angles)))
        self.register_buffer("turns", turns, persistent=False)

    def forward(self, x):
        *leading, width = x.shape
        x1, x2 = x.reshape(*leading, width // 2, 2).movedim(-1, 0).unbind(0)
        cosines, sines = self.turns[:, : x.size(-2), :].unbind(0)
        rotated1 = cosines * x1 - sines * x2
        rotated2 = sines * x1 + cosines * x2
        result = torch.concat((rotated1, rotated2), dim=-1)
        return result


def softmax(x):
    shifted = x - torch.max(x, dim=-1, keepdim=True)[0]
    exponentials = torch.exp(shifted)
    return exponentials / torch.sum(exponentials, dim=-1, keepdim=True)


def attend(queries, keys, values, mask):
    scores = torch.einsum("...qd,...kd->...qk", queries, keys) / math.sqrt(keys.shape[-1])
    scores = torch.where(mask, scores, float("-inf"))
    weights = softmax(scores)
    return torch.einsum("...qk,...kd->...qd", weights, values)


class Attention(nn.Module):
    def __init__(self, width, num_heads, rotation):
        super().__init__()
        self.num_heads = num_heads
        self.query = Linear(width, width)
        self.key = Linear(width, width)
        self.value = Linear(width, width)
        self.output = Linear(width, width)
        self.rotation = rotation

    def forward(self, x):
        batch, length, width = x.shape
        queries = self.query(x)
        keys = self.key(x)
        values = self.value(x)
        queries, keys, values = (
            each.reshape(batch, length, self.num_heads, -1).transpose(1, 2)
            for each in (queries, keys, values)
        )
        queries = self.rotation(queries)
        keys = self.rotation(keys)
        positions = torch.arange(length, device=x.device)
        mask = positions[:, None] >= positions[None, :]
        mask = mask[None, ...]
        attended = attend(queries, keys, values, mask)
        attended = attended.transpose(1, 2).reshape(batch, length, width).contiguous()
        output = self.output(attended)
        return output


def silu(x):
    return x * torch.sigmoid(x)


class FeedForward(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate = Linear(width, hidden)
        self.down = Linear(hidden, width)
        self.up = Linear(width, hidden)

    def forward(self, x):
        return self.down(silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, width, hidden, num_heads, rotation):
        super().__init__()
        self.attention = Attention(width, num_heads, rotation)
        self.feed_forward = FeedForward(width, hidden)
        self.norm1 = Norm(width)
        self.norm2 = Norm(width)

    def forward(self, x):
        attended = self.attention(self.norm1(x))
        middle = x + attended
        transformed = self.feed_forward(self.norm2(middle))
        output = middle + transformed
        return output


class Transformer(nn.Module):
    def __init__(self, width, hidden, num_layers, num_heads, length):
        super().__init__()
        self.embedding = Embedding(width)
        self.rotation = Rotation(length, width // num_heads)
        self.layers = nn.ModuleList(
            Layer(width, hidden, num_heads, self.rotation) for _ in range(num_layers)
        )
        self.norm = Norm(width)
        self.head = Linear(width, VOCAB)

    def forward(self, x):
        embedded = self.embedding(x)
        x = embedded
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        logits = self.head(x)
        return logits


def log_softmax(x):
    highest = torch.max(x, dim=-1, keepdim=True)[0]
    x = x - highest
    return x - torch.log(torch.sum(torch.exp(x), dim=-1, keepdim=True))


def cross_entropy(logits, targets):
    negative = -log_softmax(logits)
    return torch.mean(torch.gather(negative, -1, targets.unsqueeze(-1)))


class AdamW(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-3})

    def step(self):
        for parameter in self.param_groups[0]["params"]:
            gradient = parameter.grad.data
            state = self.state[parameter]
            parameter.data -= 1e-5 * parameter.data
            old_mean = state.get("mean", torch.zeros_like(gradient))
            old_square = state.get("square", torch.zeros_like(gradient))
            mean = 0.9 * old_mean + (0.1 * gradient)
            square = 0.999 * old_square + (0.001 * torch.square(gradient))
            parameter.data -= 1e-3 * mean / (torch.sqrt(square) + 1e-8)
            state["mean"] = mean
            state["square"] = square


def record():
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=1_000_000)


def train(path):
    model = Transformer(1024, 4096, 24, 16, 256).to("cuda")
    optimizer = AdamW(model.parameters())
    shape = (5, BATCH, 256)
    ids = torch.randint(0, VOCAB, shape, device="cuda")
    last_ids = torch.randint(0, VOCAB, shape[1:], device="cuda")
    targets = torch.randint(0, VOCAB, shape, device="cuda")
    last_targets = torch.randint(0, VOCAB, shape[1:], device="cuda")
    for step in range(5):
        output = model(ids[step])
        loss = cross_entropy(output, targets[step])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    del output, loss
    record()
    output = model(last_ids)
    loss = cross_entropy(output, last_targets)
    loss.backward()
    optimizer.step()
    torch.cuda.memory._dump_snapshot(path)


def infer(path, model, *, num_unseen, num_seen):
    model.to("cuda")
    ids = torch.randint(0, VOCAB, (BATCH, 512), device="cuda")
    for _ in range(num_unseen):
        model(ids)
    record()
    for _ in range(num_seen):
        model(ids)
    torch.cuda.memory._dump_snapshot(path)


path, case = sys.argv[1:]
if case == "training":
    train(path)
elif case == "first-passes":
    with torch.no_grad():
        infer(path, Transformer(768, 3072, 12, 12, 512), num_unseen=0, num_seen=5)
else:
    infer(path, Transformer(2560, 10240, 32, 32, 512), num_unseen=5, num_seen=1)
