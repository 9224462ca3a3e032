"""One attention, forward and backward, from the first allocation on: attention_probe.py SNAPSHOT"""

import sys

import torch


def softmax(scores):
    highest = scores.max(dim=-1, keepdim=True).values
    exponentials = torch.exp(scores - highest)
    return exponentials / torch.sum(exponentials, dim=-1, keepdim=True)


def attention(queries, keys, values):
    scores = torch.einsum("bqd,bkd->bqk", queries, keys)
    scores = scores / queries.shape[-1] ** 0.5
    weights = softmax(scores)
    return torch.einsum("bqk,bkd->bqd", weights, values)


torch.cuda.memory._record_memory_history(stacks="python", max_entries=100_000)
shape = (8, 4096, 16)
queries, keys, values = (torch.randn(shape, device="cuda", requires_grad=True) for _ in range(3))
output = attention(queries, keys, values)
loss = output.sum()
loss.backward()
torch.cuda.memory._dump_snapshot(sys.argv[1])
