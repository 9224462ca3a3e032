"""Inference of a transformer of torch's own layers: encoder_inference.py SNAPSHOT

Sequences of 128, 256, then 512 tokens, each with a model of its own; the last is recorded, from
the model's move to the device on.
"""

# ruff: noqa: RET504, F841 - a name keeps its tensor alive, as in the program that was recorded

import sys

import torch
from torch import nn

VOCAB, BATCH, NUM_PASSES = 50_000, 32, 25
WIDTH, HIDDEN, NUM_LAYERS, NUM_HEADS = 768, 3072, 12, 12


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, NUM_HEADS, batch_first=True)
        self.norm1 = nn.LayerNorm(WIDTH)
        self.feed_forward = nn.Sequential(
            nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)
        )
        self.norm2 = nn.LayerNorm(WIDTH)

    def forward(self, x):
        attended, _ = self.attention(x, x, x)
        x = self.norm1(x + attended)
        transformed = self.feed_forward(x)
        x = self.norm2(x + transformed)
        return x


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(NUM_LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        logits = self.head(x)
        return logits


def passes(model, ids, targets):
    for _ in range(NUM_PASSES):
        with torch.no_grad():
            logits = model(ids)
            loss = nn.functional.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


for length in (128, 256, 512):
    ids = torch.randint(0, VOCAB, (BATCH, length)).to("cuda")
    targets = torch.randint(0, VOCAB, (BATCH, length)).to("cuda")
    torch.cuda.memory._record_memory_history(stacks="python")
    model = Encoder().to("cuda")
    passes(model, ids, targets)
    torch.cuda.memory._dump_snapshot(sys.argv[1])
    torch.cuda.memory._record_memory_history(enabled=None)
    del model
    torch.cuda.empty_cache()
