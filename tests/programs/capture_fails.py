"""A training step that reads its loss within a capture, as it may do outside of one."""

import torch

layer, x = torch.nn.Linear(64, 64).cuda(), torch.zeros(8, 64, device="cuda")
with torch.no_grad():
    layer(x)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        print(layer(x).sum().item())
