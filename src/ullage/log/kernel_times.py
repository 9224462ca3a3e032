"""The kernels of one step of a recording, as `ullage record --kernels` noted them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from ullage.ground.protocol.plain import Misfit, at_least


def _above_0(seconds: float) -> float:
    if seconds <= 0:
        raise Misfit(f"is {seconds}; expected more than 0")
    return seconds


class KernelTime(NamedTuple):
    """Equal kernels, or equal matrix products.

    Attributes:
        name: of the kernel, or of a product's operator.
        precision: of a product's factors, by torch's name; empty: it is not a product.
        sizes: m, n, k and batch of a product; else those of the grid, and the threads of a block.
        num: how many there were.
        seconds: of all of them together.
    """

    name: str
    precision: str
    sizes: tuple[int, int, int, int]
    num: Annotated[int, at_least(1)]
    seconds: Annotated[float, _above_0]


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """The kernel times of one step.

    Attributes:
        gpu: the name of the GPU, as in CUDA.
        is_phantom: whether it was the phantom.
    """

    gpu: str
    is_phantom: bool
    rows: tuple[KernelTime, ...]
