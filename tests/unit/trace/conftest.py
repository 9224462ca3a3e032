"""What the tests of readers share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Not ru_maxrss, which goes on with the peak of the process that started this one.
_PRINT_PEAK = """
with open("/proc/self/status") as file:
    print(next(row.split()[1] for row in file if row.startswith("VmHWM")))
"""


@pytest.fixture(scope="session")
def run_apart() -> Callable[[str, Path], tuple[str, int]]:
    """Runs code with a path as its argument in a process of its own: the line that it prints, and
    the most memory that the process had, in bytes.
    """

    def run(code: str, path: Path) -> tuple[str, int]:
        done = subprocess.run(
            [sys.executable, "-c", code + _PRINT_PEAK, str(path)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        line, peak_kib = done.stdout.splitlines()
        return line, int(peak_kib) * 1024

    return run
