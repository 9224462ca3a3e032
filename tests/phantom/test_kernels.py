"""Triton kernels of small integers are followed by their source, and of others it is known what
they write.

It needs Triton: an environment of `ullage env --with-triton`, or a full one.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]
BOOKKEEPING = "compile/bookkeeping.py"


@pytest.fixture(scope="module", autouse=True)
def _triton(thin_python: Path) -> None:
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('triton') is None)"
    if subprocess.run([str(thin_python), "-I", "-c", find], check=False).returncode:
        pytest.skip("the environment has no Triton: make one with `ullage env --with-triton`")


def test_counts_that_kernels_keep_have_their_true_values(run_program: RunProgram) -> None:
    found = run_program(BOOKKEEPING).printed
    assert found["done"] == [4, 0, 0, 10]
    assert found["positions"] == [5, 6, 7, 8, 9, 2, 3, *[0] * 9]


def test_what_a_kernel_only_reads_stays_known(run_program: RunProgram) -> None:
    assert run_program(BOOKKEEPING).printed["slots"] == [3, 0, -1]


def test_what_hangs_on_an_unknown_value_is_unknown_and_listed(run_program: RunProgram) -> None:
    outcome = run_program(BOOKKEEPING)
    assert outcome.printed["chosen"] == [0]
    assert outcome.printed["spoilt"] == [0, 0, 0]
    assert outcome.printed["counts"] == [0, 0, 0, 0], "stored to at an unknown place"
    assert outcome.printed["kept"] == [5, 0, 0, 10]
    made = outcome.document["basis"]["allocator"]["assumptions"]
    assert sum(one["count"] for one in made if one["what"].startswith("host read")) == 3


def test_nothing_is_followed_where_values_are_off(run_program: RunProgram) -> None:
    found = run_program(BOOKKEEPING, options=("[run] values = false",)).printed
    assert found["done"] == [0, 0, 0, 0]


def test_of_kernels_that_are_tuned_the_first_alone_is_compiled(
    run_program: RunProgram, tmp_path: Path
) -> None:
    outcome = run_program("compile/kernels.py", env=(("TRITON_CACHE_DIR", str(tmp_path)),))
    assert outcome.exit_code == 0, outcome.stderr
    # Tuned, called by hand, and in a compiled graph.
    assert len(list(tmp_path.glob("*/add_kernel.cubin"))) == 3
    made = outcome.document["basis"]["allocator"]["assumptions"]
    (chosen,) = [one for one in made if one["what"].startswith("kernel chosen by timing")]
    assert chosen["count"] == 1
    assert "kernels.py" in chosen["where"]
