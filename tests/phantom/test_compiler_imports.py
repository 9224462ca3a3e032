"""torch's compiler is put off in a way that no program sees: the ways to import it, on real torch.

With a package in its place: tests/unit/record/test_compiler.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]


@pytest.mark.slow
def test_the_compiler_can_be_touched_first_in_any_way(run_program: RunProgram) -> None:
    outcome = run_program("compiler_imports.py")
    assert outcome.printed and not any(outcome.printed.values()), outcome.printed


@pytest.mark.nightly
def test_the_compiler_can_be_touched_first_in_all_ways(run_program: RunProgram) -> None:
    outcome = run_program("compiler_imports.py", "--all")
    assert len(outcome.printed) > 10
    assert not any(outcome.printed.values()), outcome.printed
