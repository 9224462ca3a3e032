"""A backward pass finds as many elements in a mask as forward did, or it could not go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

PROGRAM = "masked_backward.py"
KNOWN, LARGE = 2_000, 200_000
TRUE = sum(row % 3 != 0 for row in range(KNOWN))


def test_backward_finds_what_forward_found(run_program: RunProgram) -> None:
    counts = run_program(PROGRAM).printed
    for name, found in (("known", TRUE), ("large", LARGE)):
        assert counts[f"{name}, indexed"] == [found]
        assert counts[f"{name}, scattered"] == [found]
        assert counts[f"{name}, recomputed"] == [found, found]
        assert counts[f"{name}, recomputed in a pass of its own"] == [found, found]


def test_only_what_is_not_known_is_assumed(run_program: RunProgram) -> None:
    assumptions = run_program(PROGRAM).document["basis"]["allocator"]["assumptions"]
    sizes = {made["bytes"] for made in assumptions if "worst case" in made["what"]}
    # Eight bytes each: the numbers of the rows that may be in the large mask.
    assert sizes and all(size % (8 * LARGE) == 0 for size in sizes)
