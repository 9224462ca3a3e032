"""The line of a results page that says what made it, when, and with what.

    made_by("benchmarks.speed.run", torch="2.15.0+cu132")
    # Made by `python -m benchmarks.speed.run` on 2026-11-22 with torch 2.15.0+cu132,
    # ullage 0.1.0 and Python 3.11.7, on AMD EPYC, 2 cores, 24 GiB of memory, no GPU.

tests/cli/test_documents.py looks for it in every page of results.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from pathlib import Path

import ullage


def made_by(module: str, *, torch: str | None = None) -> str:
    """The line, of today and of this machine.

    Args:
        module: what is run, with its options where they say what is in the page.
        torch: the version that programs ran with; None where torch plays no part.
    """
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    versions = f"ullage {ullage.__version__} and Python {platform.python_version()}"
    if torch is not None:
        versions = f"torch {torch}, {versions}"
    return f"Made by `python -m {module}` on {today} with {versions}, on {machine()}."


def torch_version(python: Path) -> str:
    """The version of torch in the environment of an interpreter, without importing it."""
    code = "from importlib.metadata import version; print(version('torch'))"
    return subprocess.check_output([str(python), "-c", code], text=True).strip()


def machine() -> str:
    """The CPU, its cores, and the memory."""
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    name = cpu[1] if cpu else platform.machine()
    gib = int(memory[1]) / 2**20 if memory else 0
    return f"{name}, {os.cpu_count()} cores, {gib:.0f} GiB of memory, no GPU"
