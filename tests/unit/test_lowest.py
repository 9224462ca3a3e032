"""The lowest versions that pyproject.toml allows."""

from __future__ import annotations

from benchmarks.lowest import lowest_pins


def test_each_lower_bound_is_a_pin() -> None:
    requirements = ["uvicorn>=0.30,<1", "ullage[ui]", "anything", "click>=8.2"]
    assert lowest_pins(requirements) == ["click==8.2", "uvicorn==0.30"]
