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


def written_within() -> None:
    """Operations that clear, or copy what is known, before a kernel writes into it."""
    place = torch.randint(0, 4, (3,), device="cuda")
    zeros = torch.zeros(5, dtype=torch.long, device="cuda")
    ones = torch.ones(3, dtype=torch.long, device="cuda")
    nn.functional.one_hot(place, num_classes=5).tolist()  # unknown
    zeros.scatter(0, place, 1).tolist()  # unknown
    zeros.index_add(0, place, ones).tolist()  # unknown
    zeros.index_put((place,), ones).tolist()  # unknown
    zeros.index_fill(0, place, 3).tolist()  # unknown
    zeros.masked_fill(torch.rand(5, device="cuda") > 0.5, 3).tolist()  # unknown
    torch.bincount(place, minlength=5).tolist()  # unknown
    place.cumsum(0).tolist()  # unknown
    torch.where(torch.rand(3, device="cuda") > 0.5, ones, ones + 1).tolist()  # unknown
    torch.stack([ones, place]).tolist()  # unknown
    zeros.tolist()
    ones.tolist()


def written_over() -> None:
    """Each takes a known block, and a kernel writes over it."""
    place = torch.randint(0, 4, (3,), device="cuda")
    noise = torch.randint(0, 9, (5,), device="cuda")

    def known() -> torch.Tensor:
        """Five zeros."""
        return torch.zeros(5, dtype=torch.long, device="cuda")

    known().random_().tolist()  # unknown
    known().bool().bernoulli_().tolist()  # unknown
    known().scatter_(0, place, 1).tolist()  # unknown
    known().scatter_add_(0, place, noise[:3]).tolist()  # unknown
    known().index_add_(0, place, noise[:3]).tolist()  # unknown
    known().put_(place, noise[:3]).tolist()  # unknown
    known().addcmul_(noise, noise).tolist()  # unknown
    known().copy_(noise).tolist()  # unknown
    known().bitwise_xor_(noise).tolist()  # unknown
    (known() + noise).clamp_(max=3).tolist()  # unknown
    in_list = [known(), known()]
    torch._foreach_add_(in_list, [noise, noise])
    in_list[1].tolist()  # unknown
    result = known()
    torch.add(noise, 1, out=result)
    result.tolist()  # unknown
    values, order = torch.empty_like(noise), known()
    torch.sort(noise, out=(values, order))
    order.tolist()  # unknown
    view = known()
    view.view(5)[1:].copy_(noise[1:])
    view.tolist()  # unknown
    swapped = known()
    swapped.set_(noise)
    swapped.tolist()  # unknown
    held = nn.Parameter(torch.zeros(4, device="cuda"))
    held.data = torch.randn(4, device="cuda")
    held.tolist()  # unknown


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
    fused = torch.optim.AdamW(net.parameters(), fused=True)
    net(torch.randn(4, 128, device="cuda")).sum().backward()
    fused.step()
    assert fused.state[net.bias]["step"].item() == 1


if __name__ == "__main__":
    numbers()
    overwritten()
    written_within()
    written_over()
    reused()
    trained()
    print("done")
