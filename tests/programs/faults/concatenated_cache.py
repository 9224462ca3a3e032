"""Keys and values grow by torch.cat, a token at a time."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

IS_CLEAN = "--clean" in sys.argv
BATCH, HEADS, WIDTH, LAYERS, PROMPT, TOKENS = 16, 16, 128, 4, 2048, 24


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)

    def forward(self, x, cache, place):
        q, k, v = self.qkv(x).view(BATCH, 1, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        new = torch.stack((k, v))
        if IS_CLEAN:
            cache[:, :, :, place : place + 1] = new
        else:
            cache = torch.cat((cache, new), dim=3)
        y = F.scaled_dot_product_attention(q, *cache)
        return y.transpose(1, 2).reshape(x.shape), cache


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(LAYERS))
        shape = (LAYERS, 2, BATCH, HEADS, PROMPT + TOKENS * IS_CLEAN, WIDTH)
        self.register_buffer("caches", torch.zeros(shape), persistent=False)
        if not IS_CLEAN:
            self.grown = None

    def forward(self, x, place):
        caches = self.caches if IS_CLEAN else self.grown or list(self.caches)
        after = []
        for layer, cache in zip(self.layers, caches, strict=True):
            x, cache = layer(x, cache, place)
            after.append(cache)
        if not IS_CLEAN:
            self.grown, self.caches = after, None
        return x


torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = Model().eval()
x = torch.randn(BATCH, 1, HEADS * WIDTH, device="cuda", dtype=torch.bfloat16)
with torch.inference_mode():
    for token in range(TOKENS):
        x = model(x, PROMPT + token)
