"""The phantom as nothing but a GPU: programs run on it as on a machine that has one, and nothing of
ullage watches them, so that recorders and watchers of real GPUs can be tested.

    code, stdout, stderr = execute([python, "train.py"], directory, bare_environment(python))
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.phantom.conftest import environment

from ullage.native.libraries import LIBRARY_DIR, PHANTOM
from ullage.phantom.device import choose_device
from ullage.phantom.torch_build import check_torch, find_torch
from ullage.protocol import variables


def bare_environment(
    python: Path, *, gpu: str = "h100-80gb", num_gpus: int = 1, **others: str
) -> Mapping[str, str]:
    """The environment of a process that has such a GPU."""
    build = check_torch(find_torch(str(python)), LIBRARY_DIR)
    preloaded = [PHANTOM, *build.preloaded(LIBRARY_DIR)]
    return environment(
        {
            variables.PHANTOM: "1",
            variables.RECORD: "0",
            variables.DEVICE: choose_device(gpu).environment_text(),
            variables.LIBRARIES: build.libraries_text(),
            variables.NUM_DEVICES: str(num_gpus),
            "LD_PRELOAD": ":".join(map(str, preloaded)),
            "LD_LIBRARY_PATH": str(LIBRARY_DIR),
            **others,
        }
    )
