"""The plugin's options: of the command line, and the ini values behind them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ullage.ground.errors import SpecError
from ullage.ground.protocol.variables import PHANTOM
from ullage.verbs.testing.limits import Limits, find_slug

if TYPE_CHECKING:
    from ullage.verbs.check.gate.lock import Entry

DEFAULT_GPU = "h100-80gb"
LOCK_NAME = "ullage.lock"
MEASURED = "measured"
"""The name that stands for the GPU of a test that is measured on a real one."""

_REAL_GPUS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a pytest session.

    Attributes:
        gpu: the GPU to play for tests that name none; None measures on the GPU that is here, and
            plays DEFAULT_GPU where there is none.
        is_reporting: whether every test's peak is listed.
        is_updating: whether the peaks are written to the lock.
        lock_path: where that is.
        tests: what the lock says, where tests are held against it; else empty.
    """

    gpu: str | None
    is_reporting: bool
    is_updating: bool
    lock_path: Path
    tests: Mapping[str, Entry] = field(default_factory=dict)

    @property
    def has_phantom(self) -> bool:
        """True if this machine can play a GPU."""
        return sys.platform == "linux"

    @property
    def runs_here(self) -> bool:
        """True if tests run in this process: on its GPU, or on the phantom that it is on."""
        if os.environ.get(PHANTOM) == "1":
            return True
        return self.gpu is None and any(path.exists() for path in _REAL_GPUS)

    def gpu_of(self, limits: Limits) -> str:
        """The GPU that a test runs on."""
        if self.runs_here and os.environ.get(PHANTOM) != "1":
            return MEASURED
        return limits.gpu or self.gpu or DEFAULT_GPU

    def locked(self, nodeid: str, gpu: str) -> Entry | None:
        """The figures that a test is held against; None: it was not locked, or on another GPU."""
        entry = self.tests.get(nodeid)
        return entry if entry is not None and entry.key.gpu == gpu else None


OPTIONS = pytest.StashKey[Options]()
IS_CHILD = pytest.StashKey[bool]()
"""The key of a configuration: this process runs tests for another pytest, which sums up."""


def add_options(parser: pytest.Parser) -> None:
    """Declares the options and ini values."""
    group = parser.getgroup("gpu_memory", "GPU memory of tests marked with gpu_memory")
    group.addoption(
        "--gpu-memory", action="store_true", help="list the peak of every marked test at the end"
    )
    group.addoption(
        "--gpu-memory-gpu", metavar="GPU", help="the phantom GPU for tests that name none, even "
        f"where there is a real one; without this, the real one, else {DEFAULT_GPU}",
    )  # fmt: skip
    group.addoption(
        "--gpu-memory-update", action="store_true", help=f"write the peaks to {LOCK_NAME}"
    )
    group.addoption(
        "--gpu-memory-fail-on-increase", action="store_true",
        help=f"fail tests whose peak is above the one in {LOCK_NAME}",
    )  # fmt: skip
    parser.addini("gpu_memory_gpu", "as --gpu-memory-gpu", default=None)


def read_options(config: pytest.Config) -> Options:
    """The options of a session.

    Raises:
        pytest.UsageError: an unknown GPU, or a lock that cannot be read.
    """
    gpu = config.getoption("gpu_memory_gpu") or config.getini("gpu_memory_gpu") or None
    is_updating = config.getoption("gpu_memory_update")
    is_preforked = config.getoption("gpu_memory_fail_on_increase")
    path = config.rootpath / LOCK_NAME
    try:
        if gpu is not None:
            gpu = find_slug(gpu)
        if is_updating and is_preforked:
            raise SpecError(
                "--gpu-memory-update writes what --gpu-memory-fail-on-increase compares with; "
                "give one of them"
            )
        tests: Mapping[str, Entry] = {}
        if is_updating or is_preforked:
            from ullage.verbs.check.gate.lock import read_lock

            locked = read_lock(path).tests  # a damaged one is no reason to run every test first
            tests = locked if is_preforked else {}
    except SpecError as error:
        raise pytest.UsageError(str(error)) from None
    return Options(gpu, config.getoption("gpu_memory"), is_updating, path, tests)
