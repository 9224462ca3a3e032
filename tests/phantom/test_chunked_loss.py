"""The loss by chunks, in real arithmetic on the CPU: however a program takes it, or not at all."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.phantom

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "programs" / "techniques" / "heads.py"
# What bfloat16 can tell apart, some times over.
BFLOAT16 = 2e-2


@pytest.fixture(scope="module")
def found(thin_python: Path) -> Mapping[str, Any]:
    """What came of all ways."""
    done = subprocess.run(
        [str(thin_python), str(PROGRAM)], env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def test_it_is_the_same_but_for_the_order_of_sums(found: Mapping[str, Any]) -> None:
    assert {name: off for name, off in found["float32"].items() if off > 1e-5} == {}
    assert found["as many words as features"] < 1e-5
    assert found["float64"] < 1e-13


def test_it_rounds_as_the_program_does(found: Mapping[str, Any]) -> None:
    assert found["bfloat16"] < BFLOAT16
    assert {name: off for name, off in found["autocast"].items() if off > BFLOAT16} == {}


def test_what_else_is_done_to_logits_is_refused_by_name(found: Mapping[str, Any]) -> None:
    reasons = found["refused"]
    assert {name for name, why in reasons.items() if "'chunked_loss'" not in why} == set()
    assert "'div'" in reasons["capped"]
    assert "in place" in reasons["in place"] and "in place" in reasons["by an index"]
    assert "gradient" in reasons["own backward"] and "gradients" in reasons["hooked"]
