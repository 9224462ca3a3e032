"""`ullage.cap`, `ullage exec --cap` and `ullage.guard(cap=)`: what nvidia-smi would show for the
process stays below the cap until the program runs out of memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.recording.bare import bare_environment

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "programs" / "guard" / "capped.py"
SOURCE = str(ROOT / "src")
MAIN = "from ullage.cli import main; main()"
CAP = 5 << 30
TIMEOUT_S = 600

pytestmark = pytest.mark.phantom


def run(python: Path, *words: str) -> tuple[dict[str, Any], str]:
    """What the program prints on the bare phantom, and what is said on stderr."""
    done = subprocess.run(
        words, env=bare_environment(python), check=False, capture_output=True, text=True,
        timeout=TIMEOUT_S, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document, done.stderr


@pytest.fixture(scope="session")
def capped(thin_python: Path) -> tuple[dict[str, Any], str]:
    """What a process with a cap had, and said."""
    return run(thin_python, str(thin_python), str(PROGRAM), SOURCE, str(CAP))


@pytest.mark.slow
def test_the_process_stays_below_its_cap_and_comes_near_it(
    capped: tuple[dict[str, Any], str],
) -> None:
    document, _ = capped
    cap_bytes, context_bytes, allocator_bytes = document["parts"]
    assert document["is_of_process"]
    assert cap_bytes == CAP and context_bytes > 100 << 20
    assert document["reserved"] <= allocator_bytes
    # 0.5 GiB below it at most: the reserve, and less than one more tensor.
    assert CAP - (1 << 29) < document["used"] <= CAP


@pytest.mark.slow
def test_a_step_that_exceeds_the_cap_is_recovered_below_it(
    capped: tuple[dict[str, Any], str],
) -> None:
    document, said = capped
    recoveries, steps, used = document["guarded"]
    assert (recoveries, steps) == (1, 3)
    assert used <= 3 << 30
    assert "ullage: guard: cap: 3.0 GiB of GPU 0: " in said


@pytest.mark.slow
def test_a_cap_that_leaves_nothing_or_means_two_things_is_refused(
    capped: tuple[dict[str, Any], str],
) -> None:
    small, ambiguous = capped[0]["refused"]
    assert small.startswith("a cap of 600.0 MiB is too small: the context takes")
    assert "20G" in ambiguous


def test_an_unchanged_script_has_the_cap_of_exec(thin_python: Path) -> None:
    document, said = run(
        thin_python, sys.executable, "-c", MAIN, "exec", "--cap", "5GiB", "--python",
        str(thin_python), "--", str(PROGRAM), SOURCE,
    )  # fmt: skip
    line = next(line for line in said.splitlines() if line.startswith("ullage: "))
    assert line.startswith("ullage: cap: 5.0 GiB of GPU 0: ") and len(line) <= 80
    assert "no GPU was capped" not in said
    assert CAP - (1 << 29) < document["used"] <= CAP
