"""Each line marked "unknown" reads a value that only a kernel can have written; the others do not.

Prints "done". Nothing here may be answered as if it were known.
"""

import torch
from torch import nn


def numbers() -> None:
    """From random numbers, and from what a kernel computed."""
    x = torch.randn(64, device="cuda")
    x.sum().item()  # unknown
    bool((x > 0).all())  # unknown
    x[:4].tolist()  # unknown
    x.cpu()  # unknown
    float(x.mean())  # unknown
    int(x.argmax())  # unknown
    torch.equal(x, x + 1)  # unknown
    x.nonzero()  # unknown
    x[x > 0]  # unknown
    if torch.isfinite(x).all():  # unknown
        pass
    torch.arange(200_000).cuda().cpu()  # unknown: of more than 1 MiB nothing is kept


def overwritten() -> None:
    """What was known until a kernel wrote over it."""
    known = torch.zeros(8, dtype=torch.long, device="cuda")
    known.tolist()
    known.random_(0, 10)
    known.tolist()  # unknown
    flags = torch.ones(4, dtype=torch.bool, device="cuda")
    flags &= torch.rand(4, device="cuda") > 0.5
    bool(flags.all())  # unknown
    place = torch.arange(4, device="cuda")
    place[torch.randint(0, 4, (1,), device="cuda")] = 9
    place.tolist()  # unknown
    part = torch.zeros(8, device="cuda")
    part[2:4].normal_()
    part[:2].tolist()  # either
    part[2:4].tolist()  # unknown
    buffer = torch.zeros(4, device="cuda")
    torch.sum(torch.randn(4, 4, device="cuda"), dim=0, out=buffer)
    buffer.tolist()  # unknown


def reused() -> None:
    """A block whose former owner was known."""
    first = torch.arange(100, device="cuda")
    address = first.data_ptr()
    del first
    second = torch.randint(0, 5, (100,), device="cuda")
    assert second.data_ptr() == address, "the allocator gave another block"
    second.tolist()  # unknown


def trained() -> None:
    """Losses, gradients and parameters."""
    net = nn.Linear(128, 128).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    small = nn.Parameter(torch.zeros(3, device="cuda"))
    for _ in range(2):
        loss = net(torch.randn(4, 128, device="cuda")).square().mean() + small.sum()
        loss.backward()
        loss.item()  # unknown
        small.grad.tolist()  # unknown
        nn.utils.clip_grad_norm_(net.parameters(), 1.0).item()  # unknown
        optimizer.step()
        optimizer.zero_grad()
        net.bias.tolist()  # unknown
    updated = torch.optim.SGD([small], lr=0.1, momentum=0.9)
    small.grad = torch.randn(3, device="cuda")
    updated.step()
    small.tolist()  # unknown


if __name__ == "__main__":
    numbers()
    overwritten()
    reused()
    trained()
    print("done")
