"""Attention that writes out its scores."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

IS_CLEAN = "--clean" in sys.argv
HEADS, WIDTH = 16, 64


def attention(query, key, value):
    if IS_CLEAN:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)
    scores = query @ key.transpose(-2, -1) / WIDTH**0.5
    return torch.softmax(scores, dim=-1) @ value


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)
        self.out = nn.Linear(HEADS * WIDTH, HEADS * WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        qkv = self.qkv(x).view(batch, length, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        return self.out(attention(*qkv).transpose(1, 2).reshape(x.shape))


model = nn.Sequential(*(Layer() for _ in range(3))).cuda().bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(4, 2048, HEADS * WIDTH, device="cuda", dtype=torch.bfloat16)
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
