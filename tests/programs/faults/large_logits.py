"""The logits of a large vocabulary for all tokens at once."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

IS_CLEAN = "--clean" in sys.argv
VOCABULARY, WIDTH, TOKENS = 65536, 512, 16384
body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)).cuda()
head = nn.Linear(WIDTH, VOCABULARY, bias=False).cuda()
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)


def loss_of(hidden, labels):
    return F.cross_entropy(head(hidden), labels, reduction="sum")


for _ in range(3):
    hidden = body(torch.randn(TOKENS, WIDTH, device="cuda"))
    labels = torch.zeros(TOKENS, dtype=torch.long, device="cuda")
    if IS_CLEAN:
        parts = zip(hidden.split(TOKENS // 256), labels.split(TOKENS // 256), strict=True)
        loss = sum(checkpoint(loss_of, *part, use_reentrant=False) for part in parts)
    else:
        loss = loss_of(hidden, labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    del hidden, loss
