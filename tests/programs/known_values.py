"""Values that the host has given, or that follow from such: each must be the true one.

Ends with an AssertionError at the first that is not; prints "done" otherwise. No shape and no
branch hangs on a value that only a kernel could know.
"""

import torch
from torch import nn

CUDA = torch.device("cuda")


def check(found: object, expected: object) -> None:
    """Equal, or an error with both."""
    assert found == expected, f"found {found!r}, expected {expected!r}"


class Counting(nn.Module):
    """Keeps positions, and counts its calls, in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(256, 256)
        self.places = nn.Embedding(16, 256)
        self.register_buffer("positions", torch.arange(16))
        self.register_buffer("num_calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x is (batch, 256)."""
        self.num_calls += 1
        return self.linear(x + self.places(self.positions).sum(dim=0))


def round_trips() -> None:
    """There and back again."""
    numbers = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
    on_device = numbers.cuda()
    check(on_device.tolist(), numbers.tolist())
    check(torch.equal(on_device.cpu(), numbers), True)
    check(on_device[5].item(), 9)
    check(on_device[2:5].tolist(), [4, 1, 5])
    check(on_device.view(2, 4)[1].tolist(), [5, 9, 2, 6])
    floats = torch.linspace(0, 1, 7)
    check(torch.equal(floats.cuda().cpu(), floats), True)
    check(numbers.pin_memory().to("cuda", non_blocking=True).tolist(), numbers.tolist())
    back = torch.empty(8, dtype=torch.long)
    back.copy_(on_device)
    check(back.tolist(), numbers.tolist())
    check(on_device.clone().tolist(), numbers.tolist())
    large = torch.arange(100_000)
    check(torch.equal(large.cuda().cpu(), large), True)


def made_on_the_device() -> None:
    """Constants, and what is computed from them."""
    mask = torch.ones(8, 8, dtype=torch.bool, device=CUDA)
    check(bool(mask.all()), True)
    check(bool(mask.tril().all()), False)
    check(int(mask.tril().sum()), 36)
    check(torch.arange(5, device=CUDA).cumsum(0).tolist(), [0, 1, 3, 6, 10])
    check(torch.zeros(3, device=CUDA, dtype=torch.long).any().item(), False)
    check(torch.full((2,), 7, device=CUDA).tolist(), [7, 7])
    count = torch.arange(4, device=CUDA)
    check(torch.equal(count, torch.tensor([0, 1, 2, 3], device=CUDA)), True)
    check(torch.equal(count, count.flip(0)), False)
    check(torch.tensor([2, 0, 1], device=CUDA).argsort().tolist(), [1, 2, 0])
    check(torch.tensor([5, 3], device=CUDA).max().item(), 5)
    check(torch.ones((), device=CUDA).item(), 1.0)


def shapes() -> None:
    """The true number of elements that are found."""
    flags = torch.tensor([True, False, True, True, False]).cuda()
    check(tuple(flags.nonzero().shape), (3, 1))
    check(tuple(torch.arange(5, device=CUDA)[flags].shape), (3,))
    check(tuple(torch.randn(5, 4, device=CUDA)[flags].shape), (3, 4))
    check(tuple(torch.where(flags)[0].shape), (3,))
    check(tuple(torch.masked_select(torch.arange(5, device=CUDA), flags).shape), (3,))
    check(tuple(torch.tensor([1, 2, 2, 1], device=CUDA).unique().shape), (2,))
    lengths = torch.tensor([2, 0, 3], device=CUDA)
    check(tuple(torch.arange(3, device=CUDA).repeat_interleave(lengths).shape), (5,))
    check(flags.nonzero().flatten().tolist(), [0, 2, 3])
    check(bool(flags[:0].all()), True)
    check(bool(flags[:0].any()), False)


SIZES = {
    "coalesce": lambda rows: entries(rows).coalesce(),
    "to_sparse_csr": lambda rows: entries(rows).to_sparse_csr(),
    "bincount": lambda rows: rows[:, 0].bincount(),
    "bincount of bytes": lambda rows: rows.byte().flatten().bincount(),
    "bincount of weights": lambda rows: rows[0].bincount(torch.ones_like(rows[0]).double()),
    "bincount of nothing": lambda rows: rows[0, :0].bincount(),
    "unique": lambda rows: rows.unique(),
    "unique with places": lambda rows: torch._unique(rows, return_inverse=True)[0],
    "unique rows": lambda rows: rows.unique(dim=0),
    "unique columns": lambda rows: rows.unique(dim=1, return_counts=True)[1],
    "runs": lambda rows: rows.unique_consecutive(),
    "runs of rows": lambda rows: rows.unique_consecutive(dim=0),
    "mask of bytes": lambda rows: rows[(rows > 1).byte()],
    "a sparse gradient": lambda rows: gradient_of_table(rows).coalesce(),
}
"""What reads a number within itself, to size its result."""


def entries(rows: torch.Tensor) -> torch.Tensor:
    """A sparse matrix with a one at each of the places: (number of places, 2)."""
    ones = torch.ones(len(rows), device=rows.device)
    return torch.sparse_coo_tensor(rows.T, ones, (10, 10), check_invariants=False)


def gradient_of_table(rows: torch.Tensor) -> torch.Tensor:
    """Of an embedding, for the numbers in the first column."""
    table = nn.Embedding(10, 8, sparse=True, device=rows.device)
    table(rows[:, 0].contiguous()).sum().backward()
    return table.weight.grad


def sizes_by_numbers_read_within() -> None:
    """As on the CPU, by values that the host has given."""
    rows = torch.tensor([[1, 2], [1, 2], [3, 4], [1, 2], [1, 4]])
    for name, operation in SIZES.items():
        found, expected = operation(rows.cuda()), operation(rows)
        if expected.layout is not torch.strided:
            found, expected = found.values(), expected.values()
        check((name, *found.size()), (name, *expected.size()))


def in_place() -> None:
    """What an operation writes over is not what was there before."""
    numbers = torch.zeros(4, dtype=torch.long, device=CUDA)
    numbers += 2
    check(numbers.tolist(), [2, 2, 2, 2])
    numbers[1] = 7
    check(numbers.tolist(), [2, 7, 2, 2])
    numbers[2:].fill_(9)
    check(numbers.tolist(), [2, 7, 9, 9])
    numbers.mul_(2)
    check(int(numbers.sum()), 54)
    numbers.zero_()
    check(numbers.tolist(), [0, 0, 0, 0])
    flags = torch.zeros(4, dtype=torch.bool, device=CUDA)
    flags.logical_not_()
    check(bool(flags.all()), True)
    numbers.copy_(torch.tensor([1, 2, 3, 4]))
    check(numbers.tolist(), [1, 2, 3, 4])
    numbers.index_fill_(0, torch.tensor([0, 3], device=CUDA), 5)
    check(numbers.tolist(), [5, 2, 3, 5])


def apart() -> None:
    """What does not lie side by side on the device."""
    table = torch.arange(12, device=CUDA).view(4, 3)
    check(table[:, 1].tolist(), [1, 4, 7, 10])
    check(table[:, 2].to("cpu", torch.int32).tolist(), [2, 5, 8, 11])
    check(table[0, 1].expand(3).tolist(), [1, 1, 1])
    row = torch.zeros(4, dtype=torch.long)
    check(row.copy_(table[:, 0]).tolist(), [0, 3, 6, 9])


def copies_that_convert() -> None:
    """Copies that do not block convert on the device."""
    for source in (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 3.0]).pin_memory()):
        for dtype in (torch.long, torch.float16, torch.bool):
            target = torch.empty(3, dtype=dtype, device=CUDA)
            target.copy_(source, non_blocking=True)
            check(target.tolist(), source.to(dtype).tolist())
        check(source.to(CUDA, dtype=torch.long, non_blocking=True).tolist(), [1, 2, 3])
        part = torch.zeros(5, dtype=torch.long, device=CUDA)
        part[1:4].copy_(source, non_blocking=True)
        check(part.tolist(), [0, 1, 2, 3, 0])
        check(part.copy_(source[1:2], non_blocking=True).tolist(), [2] * 5)
        turned = torch.empty(1, 3, dtype=torch.int32, device=CUDA)
        turned.t().copy_(source[:, None], non_blocking=True)
        check(turned.tolist(), [[1, 2, 3]])


def across_training() -> None:
    """Buffers of positions and of counts, and a value made before backward."""
    net = Counting().cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    before = torch.arange(6, device=CUDA)
    for step in range(4):
        net(torch.randn(8, 256, device=CUDA)).sum().backward()
        check(before.tolist(), [0, 1, 2, 3, 4, 5])
        after = torch.arange(3, device=CUDA) + step
        check(after.tolist(), [step, step + 1, step + 2])
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        check(net.positions.tolist(), list(range(16)))
        check(net.num_calls.item(), step + 1)


if __name__ == "__main__":
    round_trips()
    made_on_the_device()
    shapes()
    sizes_by_numbers_read_within()
    in_place()
    apart()
    copies_that_convert()
    across_training()
    print("done")
