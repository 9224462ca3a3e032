"""An hour of watching does not let the watcher grow."""

from __future__ import annotations

import pytest
from benchmarks.speed.watch_hour import FULL_AFTER_MINUTES, play_hour

# A sample more or less is alive when it is counted; a leak of a byte in each sample is 18,000.
MOST_BYTES = 16_000


@pytest.mark.nightly
def test_python_holds_no_more_once_what_the_rules_remember_is_full() -> None:
    points = play_hour(60, is_traced=True)
    full = [point.python_bytes for point in points if point.minutes > FULL_AFTER_MINUTES]
    earlier, later = full[: len(full) // 2], full[len(full) // 2 :]
    assert len(later) >= 4 and min(full) > 0
    assert max(later) - max(earlier) < MOST_BYTES
