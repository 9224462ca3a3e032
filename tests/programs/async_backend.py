"""To be run with backend:cudaMallocAsync; prints the backend and its peaks as one JSON line."""

import json

import torch
from torch import nn


def main() -> None:
    """Three steps of a small network under the driver's own allocator."""
    model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(256, 1024, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    backend = torch.cuda.get_allocator_backend()
    print(
        json.dumps(
            {"backend": backend, "peak_allocated_bytes": allocated, "peak_reserved_bytes": reserved}
        )
    )


if __name__ == "__main__":
    main()
