"""Measures the GPU memory of one test, in the process that runs it.

    memory = GpuMemory()
    memory.begin()
    with memory.phase("forward"):
        model(batch)
    memory.peak, memory.phases["forward"]

The figures are torch's own: its peaks are reset when the test begins, and what was allocated before
is taken off. A reset of the test's own loses nothing. Of several devices the highest one counts.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

from ullage.ground.errors import SpecError
from ullage.players.inside import torch_internals
from ullage.verbs.testing.owners import Owned

_RESET = "_cuda_resetPeakMemoryStats"


class Levels(NamedTuple):
    """Levels of one device, in bytes."""

    allocated_bytes: int
    reserved_bytes: int
    requested_bytes: int


_NOTHING = Levels(0, 0, 0)


class GpuMemory:
    """The fixture `gpu_memory`: the memory of the test that is running.

    Attributes:
        phases: the peak in each phase that has ended, in bytes.
        held: bytes that the test had asked for and still held, after each iteration.
    """

    def __init__(self, look: Callable[[], Owned] | None = None) -> None:
        self.phases: dict[str, int] = {}
        self.held: list[int] = []
        self._look = look
        self._torch: Any = None
        self._base: dict[int, Levels] = {}
        self._highest: dict[int, Levels] = {}
        self._open: dict[str, dict[int, Levels]] = {}
        self._reset: Callable[[int], object] | None = None

    @property
    def peak(self) -> int:
        """The most bytes that were allocated at once since the test began."""
        self._fold()
        return self._above_base(self._highest).allocated_bytes

    @property
    def reserved_peak(self) -> int:
        """The most bytes that the allocator held at once since the test began."""
        self._fold()
        return self._above_base(self._highest).reserved_bytes

    @property
    def allocated(self) -> int:
        """The bytes that are allocated now, beyond those when the test began."""
        return self._above_base(self._now()).allocated_bytes

    @property
    def growth(self) -> float | None:
        """By how many bytes more was held after each iteration, on average over the second half of
        them; what the first ones make once (gradients, optimizer states) is not a growth. None
        where there were fewer than two.

        Of the bytes that were asked for: by how much a block is larger than that depends on where
        the allocator finds it, and goes up and down in a program that keeps nothing.
        """
        start = len(self.held) // 2
        if not start:
            return None
        return (self.held[-1] - self.held[start - 1]) / (len(self.held) - start)

    @property
    def by_module(self) -> Mapping[str, int]:
        """Whose the bytes at the peak were, by the path of the module; on the phantom alone.

        Raises:
            SpecError: the test is measured on a GPU, which does not tell.
        """
        return dict(self.owned().modules)

    @property
    def by_category(self) -> Mapping[str, int]:
        """The bytes at the peak by category (parameter, activation, ...); as `by_module`."""
        return dict(self.owned().categories)

    def owned(self) -> Owned:
        """All that is known of the bytes at the peak; as `by_module`."""
        if self._look is None:
            raise SpecError(
                "who owns the memory is known on the phantom GPU alone, and this test is "
                "measured where it runs; give pytest --gpu-memory-gpu h100-80gb"
            )
        return self._look()

    @property
    def has_owners(self) -> bool:
        """True if `owned` knows."""
        return self._look is not None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """While this lasts, the peak is that of the phase too; phases may hold others.

        Raises:
            SpecError: the phase is in itself.
        """
        if name in self._open:
            raise SpecError(f"phase {name!r} has begun and not ended; give the inner one its name")
        self._fold()
        self._reset_peaks()
        self._open[name] = {}
        try:
            yield
        finally:
            self._fold()
            peak = self._above_base(self._open.pop(name)).allocated_bytes
            self.phases[name] = max(peak, self.phases.get(name, 0))

    def iterations(self, count: int) -> Iterator[int]:
        """Counts, and notes what is held after each: `for step in gpu_memory.iterations(10)`.

        Raises:
            SpecError: fewer than two iterations, which show no growth.
        """
        if count < 2:
            raise SpecError(f"iterations({count}): growth shows in 2 iterations or more")
        return self._iterate(count)

    def _iterate(self, count: int) -> Iterator[int]:
        for number in range(count):
            yield number
            self.held.append(self._above_base(self._now()).requested_bytes)

    def begin(self) -> None:
        """The test begins: what is allocated by now is not its own.

        Raises:
            ImportError: there is no torch.
        """
        import torch

        self._torch = torch
        if torch.cuda.is_initialized():
            _drop_caches(torch)
        self._base = self._now()
        self._reset_peaks()
        self._reset = torch_internals.find(torch, f"torch._C.{_RESET}")
        if self._reset is not None:
            setattr(torch._C, _RESET, self._fold_and_reset)

    def end(self) -> int:
        """The test is over, nothing of it is to be referenced any more: the bytes that still are
        allocated.
        """
        gc.collect()
        if self._torch.cuda.is_initialized():
            _drop_caches(self._torch)
        return self.allocated

    def close(self) -> None:
        """torch is as it was before."""
        if self._reset is not None:
            setattr(self._torch._C, _RESET, self._reset)
            self._reset = None

    def _fold_and_reset(self, device: int) -> object:
        """Stands for torch's own reset."""
        self._fold()
        return None if self._reset is None else self._reset(device)

    def _fold(self) -> None:
        """Keeps the peaks so far, before they are reset."""
        for device in self._devices():
            levels = self._levels(device, "peak")
            for peaks in (self._highest, *self._open.values()):
                peaks[device] = Levels(*map(max, peaks.get(device, _NOTHING), levels))

    def _reset_peaks(self) -> None:
        for device in self._devices():
            reset = self._reset or getattr(self._torch._C, _RESET)
            reset(device)

    def _devices(self) -> range:
        """The devices that may hold something."""
        cuda = self._torch.cuda
        return range(cuda.device_count() if cuda.is_initialized() else 0)

    def _now(self) -> dict[int, Levels]:
        return {device: self._levels(device, "current") for device in self._devices()}

    def _levels(self, device: int, kind: str) -> Levels:
        stats = self._torch.cuda.memory_stats(device)
        return Levels(*(stats[f"{name}.all.{kind}"] for name in Levels._fields))

    def _above_base(self, levels: Mapping[int, Levels]) -> Levels:
        """The highest of the devices, each above what it held when the test began."""
        above = [
            Levels(*(size - base for size, base in zip(level, self._base_of(device), strict=True)))
            for device, level in levels.items()
        ]
        return Levels(*(max(column) for column in zip(*above, _NOTHING, strict=True)))

    def _base_of(self, device: int) -> Levels:
        return self._base.get(device, _NOTHING)


def _drop_caches(torch: ModuleType) -> None:
    """Gives back what torch keeps for later: one test is not to pay for another, nor to profit."""
    clear = torch_internals.find(torch, "torch._C._cuda_clearCublasWorkspaces")
    if clear is not None:
        clear()
    torch.cuda.empty_cache()
