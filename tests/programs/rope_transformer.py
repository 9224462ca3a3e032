"""A training step of a transformer that is written out in einsum: rope_transformer.py SNAPSHOT

RMSNorm, rotary positions that every layer computes anew, SwiGLU, AdamW by hand; 36 layers of width
1280, batch 4 x 256. The tenth step is recorded.
"""

# ruff: noqa: RET504 - a name keeps its tensor alive, as in the program that was recorded

import math
import sys

import torch
from torch import nn

VOCAB, BATCH, LENGTH = 10_000, 4, 256
WIDTH, HIDDEN, NUM_LAYERS, NUM_HEADS = 1280, 5120, 36, 20
THETA = 10_000


def weight(*shape):
    return nn.Parameter(torch.empty(*shape))


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = weight(WIDTH)

    def forward(self, x):
        mean_square = (x**2).mean(dim=(2,), keepdim=True)
        root = torch.sqrt(mean_square + 1e-5)
        return (x / root) * self.gain


class Rotation(nn.Module):
    def __init__(self, width, length, device):
        super().__init__()
        multiples = torch.arange(0, width, 2, device=device, dtype=torch.float32)
        exponents = multiples / width
        frequencies = 1.0 / (THETA**exponents)
        positions = torch.arange(length, device=device, dtype=torch.float32)
        angles = torch.einsum("p,f->pf", positions, frequencies)
        cosines, sines = torch.cos(angles), torch.sin(angles)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)

    def forward(self, x, positions):
        cosines = self.cosines[positions]
        sines = self.sines[positions]
        even, odd = x[..., 0::2], x[..., 1::2]
        cosines_by_head, sines_by_head = cosines.unsqueeze(1), sines.unsqueeze(1)
        rotated_even = even * cosines_by_head - odd * sines_by_head
        rotated_odd = even * sines_by_head + odd * cosines_by_head
        rotated = torch.empty_like(x)
        rotated[..., 0::2] = rotated_even
        rotated[..., 1::2] = rotated_odd
        return rotated


def softmax(scores):
    highest = torch.max(scores, dim=-1, keepdim=True).values
    shifted = scores - highest
    exponentials = torch.exp(shifted)
    total = torch.sum(exponentials, dim=-1, keepdim=True)
    return exponentials / total


def attend(queries, keys, values, mask):
    scores = torch.einsum("...qd,...kd->...qk", queries, keys)
    masked = torch.where(mask, scores, -torch.inf)
    weights = softmax(masked / math.sqrt(queries.shape[-1]))
    return torch.einsum("...qk,...kd->...qd", weights, values)


def by_head(x):
    return x.reshape(BATCH, LENGTH, NUM_HEADS, WIDTH // NUM_HEADS).permute(0, 2, 1, 3)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = weight(WIDTH, WIDTH)
        self.key = weight(WIDTH, WIDTH)
        self.value = weight(WIDTH, WIDTH)
        self.output = weight(WIDTH, WIDTH)

    def forward(self, x):
        queries = torch.einsum("ki,...si->...sk", self.query, x)
        keys = torch.einsum("ki,...si->...sk", self.key, x)
        values = torch.einsum("ki,...si->...sk", self.value, x)
        head_queries, head_keys, head_values = by_head(queries), by_head(keys), by_head(values)
        positions = torch.arange(LENGTH, device=x.device)
        batch_positions = positions.expand(BATCH, LENGTH)
        rotation = Rotation(WIDTH // NUM_HEADS, LENGTH, x.device)
        rotated_queries = rotation.forward(head_queries, batch_positions)
        rotated_keys = rotation.forward(head_keys, batch_positions)
        mask = torch.tril(torch.ones((LENGTH, LENGTH), device=x.device, dtype=torch.bool))
        attended = attend(rotated_queries, rotated_keys, head_values, mask)
        joined = attended.permute(0, 2, 1, 3).reshape(BATCH, LENGTH, WIDTH)
        projected = torch.einsum("mv,...sv->...sm", self.output, joined)
        return projected


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = weight(HIDDEN, WIDTH)
        self.down = weight(WIDTH, HIDDEN)
        self.up = weight(HIDDEN, WIDTH)

    def forward(self, x):
        gate = torch.einsum("oi,...i->...o", self.gate, x)
        up = torch.einsum("oi,...i->...o", self.up, x)
        activated = gate * torch.sigmoid(gate)
        product = activated * up
        return torch.einsum("io,...o->...i", self.down, product)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = Norm()
        self.attention = Attention()
        self.norm2 = Norm()
        self.feed_forward = FeedForward()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        x = x + self.feed_forward(self.norm2(x))
        return x


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = weight(VOCAB, WIDTH)

    def forward(self, ids):
        return self.table[ids]


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = weight(VOCAB, WIDTH)

    def forward(self, x):
        return torch.einsum("oi,...i->...o", self.matrix, x)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = Embedding()
        self.layers = nn.ModuleList(Layer() for _ in range(NUM_LAYERS))
        self.norm = Norm()
        self.head = Head()

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        logits = self.head(x)
        return logits


class AdamW(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-3})

    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["mean"] = torch.zeros_like(parameter)
                state["square"] = torch.zeros_like(parameter)
            mean, square = state["mean"], state["square"]
            gradient = parameter.grad.data
            mean.mul_(0.9).add_(gradient, alpha=0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            root = square.sqrt().add_(1e-8)
            parameter.data.addcdiv_(mean, root, value=-1e-3)
            parameter.data.add_(parameter.data, alpha=-1e-5)


model = Transformer()
optimizer = AdamW(model.parameters())
model.to("cuda")
ids = torch.randint(0, VOCAB, (BATCH, LENGTH), device="cuda")
for step in range(10):
    if step == 9:
        torch.cuda.memory._record_memory_history(stacks="python", max_entries=1_000_000)
    logits = model(ids)
    loss = logits.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.cuda.memory._dump_snapshot(sys.argv[1])
