"""A program that asks nvidia-smi gets the answers that the phantom's other faces give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]


@pytest.mark.slow
def test_nvidia_smi_says_what_nvml_and_cuda_say(run_program: Callable[..., Any]) -> None:
    printed = run_program("asks_nvidia_smi.py", gpu="t4").printed
    for pair in ("drivers", "names", "totals"):
        assert printed[pair][0] == printed[pair][1], pair
    before, during, of_cuda = printed["used"]
    assert before == 0
    assert during == of_cuda
    assert during >= 256
