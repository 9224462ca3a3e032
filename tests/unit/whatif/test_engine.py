"""What cannot be replayed is refused before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ullage.errors import SnapshotError, SpecError
from ullage.phantom.device import choose_device
from ullage.trace.snapshot import Snapshot
from ullage.whatif.engine import what_if


def test_a_snapshot_without_an_allocation_is_refused(
    make_snapshot: Callable[..., Snapshot],
) -> None:
    with pytest.raises(SnapshotError, match="holds no allocation"):
        what_if(make_snapshot(""), python=None, device=choose_device())


def test_another_allocators_recording_is_refused(make_snapshot: Callable[..., Snapshot]) -> None:
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    with pytest.raises(SpecError, match="backend:cudaMallocAsync"):
        what_if(
            replace(make_snapshot("+a"), settings=settings), python=None, device=choose_device()
        )
