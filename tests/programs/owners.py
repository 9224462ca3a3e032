"""Trains a small network and says as JSON what it owns when its last, largest block comes.

Each figure is the sum of the allocator's blocks that hold its tensors, as torch's own snapshot has
them, so that rounding is in it.
"""

import json
from collections.abc import Iterable

import torch
from torch import nn

MIB = 2**20


class Net(nn.Module):
    """Two layers with a tied weight, a batch norm, and a buffer that takes a block of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1000, 700)
        self.norm = nn.BatchNorm1d(700)
        self.second = nn.Linear(700, 1000)
        self.head = nn.Linear(700, 1000, bias=False)
        self.head.weight = self.second.weight
        self.register_buffer("scale", torch.ones(300_000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x is (batch, 1000)."""
        hidden = torch.relu(self.norm(self.first(x)))
        return self.second(hidden) + self.head(hidden) * self.scale[:1000]


def block_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the blocks that hold the tensors, each block once."""
    addresses = {t.untyped_storage().data_ptr() for t in tensors if t.is_cuda}
    blocks = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
    sizes = {block["address"]: block["size"] for block in blocks}
    return sum(sizes[address] for address in addresses)


def main() -> None:
    """Three steps, the gradients of the last one kept; then a block larger than all before."""
    net = Net().cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    x = torch.randn(64, 1000).cuda()
    y = torch.randn(64, 1000, pin_memory=True).to("cuda", non_blocking=True)
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
    largest = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    states = [value for state in optimizer.state.values() for value in state.values()]
    owned = {
        "parameter": block_bytes(net.parameters()),
        "gradient": block_bytes(p.grad for p in net.parameters()),
        "optimizer_state": block_bytes(states),
        "buffer": block_bytes(net.buffers()),
        "input": block_bytes([x, y]),
    }
    exact = {
        "parameter": sum(p.nbytes for p in net.parameters()),
        "gradient": sum(p.grad.nbytes for p in net.parameters()),
        "optimizer_state": sum(value.nbytes for value in states if value.is_cuda),
        "buffer": sum(b.nbytes for b in net.buffers()),
        "input": x.nbytes + y.nbytes,
    }
    print(json.dumps({"owned": owned, "exact": exact, "largest": largest.nbytes}))


if __name__ == "__main__":
    main()
