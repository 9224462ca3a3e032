"""A torch of which only the allocator's counters are there, and a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ullage.record.trackers.figures import StepFigures

GIB = 2**30


def make_torch(*levels: tuple[int, int, int]) -> Any:
    """Each device with its reserved, fragmented and free GiB."""

    def memory_stats(device: int) -> dict[str, Any]:
        reserved, fragmented, _ = levels[device]
        values = {"reserved_bytes": reserved * GIB, "inactive_split_bytes": fragmented * GIB}
        stats: dict[str, Any] = {name: {"all": {"current": n}} for name, n in values.items()}
        return {**stats, "num_alloc_retries": 3 + device, "num_ooms": device}

    return SimpleNamespace(
        _C=SimpleNamespace(_cuda_memoryStats=memory_stats),
        cuda=SimpleNamespace(
            device_count=lambda: len(levels),
            mem_get_info=lambda device: (levels[device][2] * GIB, 80 * GIB),
        ),
    )


@pytest.fixture
def torch() -> Any:
    """Two devices, the second with more memory in use."""
    return make_torch((2, 1, 70), (10, 2, 60))


@pytest.fixture
def make_figures() -> Callable[..., StepFigures]:
    """`make_figures(7, 5)`: of step 7, with a peak of 5 GiB."""

    def make(step: int = 7, peak: int = 5) -> StepFigures:
        return StepFigures(step, peak * GIB, 8 * GIB, GIB, 60 * GIB, 0.5, 3, 0)

    return make
