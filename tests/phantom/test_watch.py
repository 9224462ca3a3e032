"""What `ullage watch` reads beside a real PyTorch program is what the program uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

import ullage

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]
PLACES = [str(Path(module.__file__ or "").parent) for module in (pynvml,)]
PLACES.append(str(Path(ullage.__file__).parent.parent))


@pytest.mark.slow
def test_the_memory_of_eight_gpus_is_that_of_the_program(run_program: Callable[..., Any]) -> None:
    options = ("--gpus", "8")
    printed = run_program("watches_itself.py", *PLACES, gpu="a100-80gb", options=options).printed
    assert len(printed["used"]) == 8
    assert printed["used"] == printed["of_cuda"]
    grown = [
        after - before for before, after in zip(printed["before"], printed["used"], strict=True)
    ]
    assert all(size >= 64 * (index + 1) * 2**20 for index, size in enumerate(grown))
    assert len(set(grown)) == 8
    assert printed["comes_back"]
