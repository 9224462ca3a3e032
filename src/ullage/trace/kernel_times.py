"""The kernels of one step of a recording, as `ullage record --kernels` noted them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ullage.errors import SnapshotError
from ullage.trace import field_checks


class KernelTime(NamedTuple):
    """Equal kernels, or equal matrix products.

    Attributes:
        name: of the kernel, or of a product's operator.
        precision: of a product's factors, by torch's name; empty: it is no product.
        sizes: m, n, k and batch of a product; else those of the grid, and the threads of a block.
        num: how many there were.
        seconds: of all of them together.
    """

    name: str
    precision: str
    sizes: tuple[int, int, int, int]
    num: int
    seconds: float


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Of one step.

    Attributes:
        gpu: the name of the GPU, as CUDA has it.
        is_phantom: whether it was the phantom.
    """

    gpu: str
    is_phantom: bool
    rows: tuple[KernelTime, ...]


def parse_kernel(entry: object) -> KernelTime:
    """A row of a record.

    Raises:
        SnapshotError: it is damaged.
    """
    name, precision, sizes, num, seconds = field_checks.row(entry, 5, "kernels")
    four = field_checks.row(sizes, 4, "kernels")
    first, second, third, fourth = (field_checks.size({"sizes": size}, "sizes") for size in four)
    taken_s = field_checks.seconds({"seconds": seconds}, "seconds")
    if field_checks.size({"num": num}, "num") < 1 or taken_s <= 0:
        raise SnapshotError(f"{num} kernels took {taken_s} s; expected 1 or more, and above 0 s")
    return KernelTime(
        field_checks.shown(name, "kernels"),
        field_checks.shown(precision, "kernels"),
        (first, second, third, fourth),
        num,
        taken_s,
    )
