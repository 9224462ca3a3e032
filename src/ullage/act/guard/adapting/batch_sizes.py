"""The sizes of a batch that are known before its step: those of the tensors in it, without torch.

    batch_sizes(ids, labels)       # ids: (8, 512): (4096.0, 2097152.0, ...)

Each tensor has two: its elements, which most of a step's memory grows with, and its rows times the
square of a row's elements, which attention grows with where it writes its scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_MAX_TENSORS = 4
_MAX_DEPTH = 6


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """The sizes of a batch.

    Attributes:
        program: what tells batches of different make apart: the dimensions of their tensors.
        sizes: two for each tensor; those of the fourth and further tensors are added up.
    """

    program: tuple[int, ...]
    sizes: tuple[float, ...]


def batch_sizes(*values: Any) -> BatchSizes | None:
    """The sizes of the tensors in the arguments of a step, also within lists, tuples and mappings.
    None: there is no tensor.
    """
    shapes = [shape for value in values for shape in _shapes(value, _MAX_DEPTH)]
    if not shapes:
        return None
    pairs = [_sizes_of(shape) for shape in shapes]
    rest = pairs[_MAX_TENSORS - 1 :]
    pairs[_MAX_TENSORS - 1 :] = [(sum(a for a, _ in rest), sum(b for _, b in rest))] * bool(rest)
    program = tuple(len(shape) for shape in shapes[:_MAX_TENSORS])
    return BatchSizes(program, tuple(size for pair in pairs for size in pair))


def _sizes_of(shape: tuple[int, ...]) -> tuple[float, float]:
    """Elements, and rows times the square of a row's elements; one dimension is one row."""
    num_elements = 1.0
    for size in shape:
        num_elements *= size
    rows = shape[0] if len(shape) > 1 else 1
    return num_elements, num_elements * num_elements / rows if rows else 0.0


def _shapes(value: Any, depth: int) -> Iterator[tuple[int, ...]]:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        if all(isinstance(size, int) for size in shape):
            yield tuple(int(size) for size in shape)
    elif depth and isinstance(value, Mapping):
        for element in value.values():
            yield from _shapes(element, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for element in value:
            yield from _shapes(element, depth - 1)
