"""xformers' memory-efficient attention, forward and backward."""

import torch
import xformers.ops
from torch import nn


def main() -> None:
    """Three steps of one layer."""
    layer = nn.Linear(1024, 3 * 1024).to("cuda", torch.bfloat16)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(4, 2048, 1024).to("cuda", torch.bfloat16)
        q, k, v = layer(x).view(4, 2048, 3, 16, 64).unbind(2)
        mask = xformers.ops.LowerTriangularMask()
        xformers.ops.memory_efficient_attention(q, k, v, attn_bias=mask).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
