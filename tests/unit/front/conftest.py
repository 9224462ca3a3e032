"""The front on a real socket; skipped where the extra ullage[front] is not installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

RunFront = Callable[..., None]


@pytest.fixture
def run_front(tmp_path: Path) -> RunFront:
    """Runs a scenario against a front: run_front(scenario, blocks=64, speed=FAST, engines=1)."""
    pytest.importorskip("httptools", reason="needs the extra ullage[front]")
    from tests.unit.front.sockets import run_scenario

    return partial(run_scenario, tmp_path)
