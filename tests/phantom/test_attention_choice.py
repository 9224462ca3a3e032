"""Which calls of scaled_dot_product_attention no fused kernel takes: what UL123 says, asked of
torch itself. The table of docs/guide/remedies.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]
NEVER = {"fewer heads of keys", "not contiguous"}
ODD = {"width 60", "width 65"}
OLD = {"t4"}


@pytest.mark.parametrize(
    "gpu",
    ["t4", *(pytest.param(name, marks=pytest.mark.nightly)
             for name in ("a100-40gb", "rtx-4090", "h100-80gb"))],
)  # fmt: skip
def test_the_math_path_is_taken_where_the_finding_says(run_program: RunProgram, gpu: str) -> None:
    outcome = run_program("attention_choice.py", gpu=gpu)
    (line,) = [line for line in outcome.stderr.splitlines() if line.startswith("{")]
    chosen = json.loads(line)
    math = {dtype: {n for n, one in calls.items() if one == "math"}
            for dtype, calls in chosen.items()}  # fmt: skip
    everything = set(chosen["float64"])
    is_old = gpu in OLD
    assert math["float64"] == everything
    assert math["bfloat16"] == (everything if is_old else NEVER)
    assert math["float16"] == (NEVER | ODD if is_old else NEVER)
    assert math["float32"] == (NEVER if is_old else NEVER | {"width 65"})
