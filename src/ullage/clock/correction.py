"""Corrects the clock by the kernels of a real step (`ullage record --kernels`).

    correction = find_correction(kernels, works, cost_of)
    correction.of(work, cost_of(work)), correction.basis

Of each kind of work, the measured seconds are compared with the clock's of the same work: of matrix
products by their shapes, of other kernels by their name, grid and threads, where the run has equal
ones. The quotient is a factor for all work of that kind. Products of each precision are a kind of
their own, as they run on other units.

Ignores: that shapes may differ in it. Not corrected are kinds without an equal
kernel, and what is not a kernel: copies, messages, and the host.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from ullage.clock.cost import Category, Cost
from ullage.clock.given_work import GivenWork, KernelLaunch, Product
from ullage.log.kernel_times import KernelTimes

_LEFT: Final = "not corrected by measurements: other kinds of work, copies, messages, and the host"


@dataclass(frozen=True, slots=True)
class Correction:
    """Factors of the clock's times.

    Attributes:
        factors: by kind of work, such as "matrix products in bfloat16"; of others there is none.
        basis: what is corrected, and what is not.
    """

    factors: Mapping[str, float]
    basis: tuple[str, ...]

    def of(self, work: GivenWork, cost: Cost) -> Cost:
        """The cost of work with the factor of its kind; its interval keeps its relative width."""
        factor = self.factors.get(_kind(work, cost))
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
    launches: defaultdict[tuple[object, ...], list[GivenWork]] = defaultdict(list)
    for work in works:
        if isinstance(work, KernelLaunch):
            launches[demangle(work.name), *work.grid, work.block_threads].append(work)
    compared: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for kernel in kernels.rows:
        equal = launches.get((kernel.name, *kernel.sizes), [])
        if kernel.precision:
            m, n, k, batch = kernel.sizes
            equal = [Product(n, m, k, batch, kernel.precision, 0)]  # columns first, as in cuBLAS
        costs = [cost_of(work) for work in equal]
        # A kernel of several GPUs also waits for the others.
        if costs and costs[0].category is not Category.COMMUNICATION:
            clock_s = kernel.num * sum(cost.duration.s for cost in costs) / len(costs)
            compared[_kind(equal[0], costs[0])].append((kernel.seconds, clock_s))
    factors: dict[str, float] = {}
    basis = []
    for kind, pairs in compared.items():
        measured_s, clock_s = map(sum, zip(*pairs, strict=True))
        factors[kind] = measured_s / clock_s
        basis.append(
            f"{kind}: {factors[kind]:.2f} times the clock's seconds, as measured on "
            f"{'a simulated GPU' if kernels.is_phantom else 'this GPU'}: {len(pairs)} "
            f"shape{'s' * (len(pairs) != 1)}, {1e3 * measured_s:.3g} ms of a step"
        )
    return Correction(factors, (*basis, _LEFT))


def _kind(work: GivenWork, cost: Cost) -> str:
    precision = f" in {work.precision}" if isinstance(work, Product) else ""
    return f"{cost.category.value}{precision}"


@cache
def demangle(name: str) -> str:
    """The name of a C++ function as profilers write it; any other name unchanged.

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
