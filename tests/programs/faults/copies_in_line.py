"""Batches are pinned and not waited for, but copied on the stream that computes."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(nn.Linear(12288, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.empty(1024, 12288, pin_memory=True)
computing = torch.cuda.current_stream()
copying = torch.cuda.Stream() if IS_CLEAN else computing
for _ in range(5):
    with torch.cuda.stream(copying):
        inputs = batch.to("cuda", non_blocking=True)
    computing.wait_stream(copying)
    inputs.record_stream(computing)
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
    del inputs
