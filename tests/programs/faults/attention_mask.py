"""A causal mask for each head of each sample."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

IS_CLEAN = "--clean" in sys.argv
HEADS, WIDTH = 16, 64


def make_causal_mask(batch, length):
    ones = torch.ones(batch, HEADS, length, length, dtype=torch.bool, device="cuda")
    return torch.zeros_like(ones, dtype=torch.bfloat16).masked_fill_(ones.triu_(1), -1e4)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)
        self.out = nn.Linear(HEADS * WIDTH, HEADS * WIDTH)

    def forward(self, x, mask):
        batch, length, _ = x.shape
        qkv = self.qkv(x).view(batch, length, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv, attn_mask=mask, is_causal=mask is None)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x):
        mask = None if IS_CLEAN else make_causal_mask(x.shape[0], x.shape[1])
        for layer in self.layers:
            x = layer(x, mask)
        return x


model = Model().cuda().bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(4, 4096, HEADS * WIDTH, device="cuda", dtype=torch.bfloat16)
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
