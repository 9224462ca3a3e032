"""Corrects the clock by the kernels of a real step (`ullage record --kernels`).

    correction = find_correction(kernels, works, cost_of)
    correction.of(cost_of(work)), correction.basis

Of each kind of work, the measured seconds are compared with the clock's of the same work: of matrix
products by their shapes, of other kernels by their name, grid and threads, where the run has equal
ones. The quotient is a factor for all work of that kind.

Ignores: that shapes may differ in it. Not corrected are kinds without an equal kernel, and what is
no kernel: copies, messages, and the host.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, NamedTuple

from ullage.clock.cost import Category, Cost
from ullage.clock.given_work import GivenWork, KernelLaunch, Product
from ullage.trace.kernel_times import KernelTime, KernelTimes

_CORRECTED: Final = (
    Category.MATRIX_PRODUCTS,
    Category.ATTENTION,
    Category.MEMORY_BOUND,
    Category.UNKNOWN,
)


class _Compared(NamedTuple):
    """Seconds of the same work, as measured and by the clock, and how many shapes it has."""

    measured_s: float
    clock_s: float
    num_shapes: int


@dataclass(frozen=True, slots=True)
class Correction:
    """Factors of the clock's times.

    Attributes:
        factors: by kind of work; of others there is none.
        basis: what is corrected, and what is not.
    """

    factors: Mapping[Category, float]
    basis: tuple[str, ...]

    def of(self, cost: Cost) -> Cost:
        """A cost with the factor of its kind; its interval keeps its relative width."""
        factor = self.factors.get(cost.category)
        if factor is None:
            return cost
        basis = f"{cost.duration.basis}; times {factor:.2f}, as measured"
        return replace(cost, duration=replace(cost.duration.scaled(factor), basis=basis))


def find_correction(
    kernels: KernelTimes, works: Iterable[GivenWork], cost_of: Callable[[GivenWork], Cost]
) -> Correction:
    """The factors that kernels of a real step give the clock.

    Args:
        kernels: of the GPU that the clock is for.
        works: the pieces of work of the run that is timed.
        cost_of: what the clock says of one.
    """
    launches: defaultdict[tuple[object, ...], list[Cost]] = defaultdict(list)
    for work in works:
        if isinstance(work, KernelLaunch):
            name = demangle(work.name)
            launches[name, *work.grid, work.block_threads].append(cost_of(work))
    compared: defaultdict[Category, list[tuple[float, float]]] = defaultdict(list)
    for kernel in kernels.rows:
        costs = launches.get((kernel.name, *kernel.sizes), [])
        if kernel.precision:
            costs = [cost_of(_product(kernel))]
        if costs:
            clock_s = kernel.num * sum(cost.duration.s for cost in costs) / len(costs)
            compared[costs[0].category].append((kernel.seconds, clock_s))
    sums: dict[Category, _Compared] = {}
    for kind in _CORRECTED:
        if pairs := compared.get(kind):
            measured_s, clock_s = map(sum, zip(*pairs, strict=True))
            sums[kind] = _Compared(measured_s, clock_s, len(pairs))
    factors = {kind: seconds.measured_s / seconds.clock_s for kind, seconds in sums.items()}
    return Correction(factors, tuple(_say(kernels, sums)))


def _product(kernel: KernelTime) -> Product:
    """As cuBLAS has it: the columns come first."""
    m, n, k, batch = kernel.sizes
    return Product(n, m, k, batch, kernel.precision, 0)


def _say(kernels: KernelTimes, sums: Mapping[Category, _Compared]) -> Iterator[str]:
    where = "a simulated GPU" if kernels.is_phantom else "this GPU"
    for kind, (measured_s, clock_s, num) in sums.items():
        yield (
            f"{kind.value}: {measured_s / clock_s:.2f} times the clock's seconds, as measured on "
            f"{where}: {num} shape{'s' * (num != 1)}, {1e3 * measured_s:.3g} ms of a step"
        )
    left = [kind.value for kind in Category if kind not in sums]
    yield f"not corrected by measurements: {', '.join(left)}, and the host"


@cache
def demangle(name: str) -> str:
    """The name of a C++ function as profilers write it; any other name as it is.

    Without libstdc++ on this machine, C++ names stay mangled, and no kernel of PyTorch is equal to
    a measured one.
    """
    try:
        demangler = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
        free = ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return name
    demangler.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    status = ctypes.c_int()
    text = demangler(name.encode(), None, None, ctypes.byref(status))
    if status.value or not text:
        return name
    try:
        return ctypes.string_at(text).decode(errors="replace")
    finally:
        free(text)
