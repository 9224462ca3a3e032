"""Python's collector under `ullage run`: torch is set aside, and comes back when it is its turn."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="there it collects in parts")
def test_torch_is_set_aside_until_the_collector_looks_through_all(
    run_program: Callable[..., Any], tmp_path: Path
) -> None:
    outcome = run_program("collector.py", str(tmp_path))
    num_before, num_young, num_after, thresholds = json.loads(outcome.stderr.splitlines()[0])
    assert num_before < 20_000  # the program's own, and the recorder's
    assert num_after - num_young > 100_000
    young, middle, old = thresholds
    assert 0.9 < num_young / (young * (middle + 1) * (old + 1)) < 1.1
    assert (tmp_path / "early").read_text() == (tmp_path / "late").read_text() == "whole"
