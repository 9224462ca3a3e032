"""`ullage watch` beside a directory that stands for a machine of eight simulated GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ullage.players.phantom.device import choose_device
from ullage.players.phantom.nvml.machine import machine_of, open_machine

NUM_GPUS = 8
MIB = 2**20
MAIN = "from ullage.cli import main; main()"


def make_node(directory: Path) -> Path:
    """Makes the directory of a machine with eight GPUs."""
    device = choose_device("h100-80gb").environment_text()
    open_machine(directory, machine_of(device, "", NUM_GPUS, None))
    return directory


def clean() -> dict[str, str]:
    """The environment without what a test before this one may have set."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ULLAGE_")}


def on_node(node: Path) -> dict[str, str]:
    """The environment of a process that uses the machine's GPUs."""
    return clean() | {
        "ULLAGE_PHANTOM": "1",
        "ULLAGE_NVML": str(node),
        "ULLAGE_NUM_DEVICES": str(NUM_GPUS),
        "ULLAGE_DEVICE": choose_device("h100-80gb").environment_text(),
    }


def beside(node: Path) -> dict[str, str]:
    """The environment of a process that watches the machine."""
    return clean() | {"LD_LIBRARY_PATH": str(node), "XDG_RUNTIME_DIR": str(node.parent)}


def write_script(node: Path, *lines: str) -> None:
    """Replaces the script of faults and figures at once."""
    (node / ".script").write_text("".join(f"{line}\n" for line in lines))
    (node / ".script").replace(node / "script")


def users(sample: dict[str, Any]) -> dict[tuple[int, int], int]:
    """The bytes of each process on each GPU."""
    return {
        (process["pid"], device["index"]): process["used_bytes"]
        for device in sample["devices"]
        for process in device["processes"] or ()
    }


class Watcher:
    """The lines of `ullage watch --json`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def next(self) -> dict[str, Any]:
        """The next sample."""
        assert self._process.stdout is not None
        sample: dict[str, Any] = json.loads(self._process.stdout.readline())
        return sample

    def until(self, is_there: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next sample that is as it should be; fails after a minute."""
        end_s = time.monotonic() + 60
        while time.monotonic() < end_s:
            sample = self.next()
            if is_there(sample):
                return sample
        raise AssertionError("no sample was as it should be")
