"""Growth per step: what is held after each step, whatever the size of its batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ullage.explain.moments.course import StepSource
from ullage.gate.figures import _growth
from ullage.trace.model import Request


def seen(
    *held: int, source: StepSource = StepSource.RECORD, requests: tuple[Request, ...] = ()
) -> Any:
    """A device that holds so much after each step."""
    ends = np.arange(len(held))
    course = SimpleNamespace(source=source, num_steps=len(held), step_ends=ends, requests=requests)
    return SimpleNamespace(course=course, levels=SimpleNamespace(requested_bytes=np.array(held)))


@pytest.mark.parametrize(
    ("held", "growth"),
    [
        ((5, 100, 100), 0),
        ((5, 100, 112), 12),
        ((5, 100, 112, 124, 136), 12),
        ((5, 100, 112, 124, 136, 148), 12),
        ((900, 100, 100, 100, 100), 0),
        ((5, 300, 100, 200, 100, 400), 0),  # batches of different sizes
        ((5, 100, 100, 100, 100, 180, 180, 180, 180), 20),  # now and then
        ((5, 200, 100, 100), -50),
        ((5, 100), None),
        ((), None),
    ],
)
def test_growth_is_the_rise_of_the_least_that_is_held(
    held: tuple[int, ...], growth: int | None
) -> None:
    assert _growth(seen(*held)) == growth


def test_a_step_of_several_requests_counts_as_so_many() -> None:
    """Four after each step but the first: 24 bytes more a step are 6 a request."""
    requests = tuple(Request("r.jsonl:1", step, step) for step in range(1, 5) for _ in range(4))
    assert _growth(seen(5, 100, 124, 148, 172)) == 24
    assert _growth(seen(5, 100, 124, 148, 172, requests=requests)) == 6


def test_steps_that_were_guessed_say_nothing() -> None:
    assert _growth(seen(1, 2, 3, 4, source=StepSource.STACKS)) is None
