"""The phantom as nothing but a GPU: programs run on it as on a machine that has one, and nothing of
ullage watches them, so that recorders and watchers of real GPUs can be tested.

    code, stdout, stderr = execute([python, "train.py"], directory, bare_environment(python))
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.phantom.conftest import MAIN, Outcome, environment, execute, find_program, write_settings

from ullage.ground.native.libraries import LIBRARY_DIR, PHANTOM
from ullage.ground.protocol import variables
from ullage.players.phantom.caches import without_spaces
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.torch_build import check_torch, find_torch

RecordProgram = Callable[..., Outcome]


def bare_environment(
    python: Path, *, gpu: str = "h100-80gb", num_gpus: int = 1, **others: str
) -> Mapping[str, str]:
    """The environment of a process that has such a GPU."""
    build = check_torch(find_torch(str(python)), LIBRARY_DIR)
    libraries = without_spaces(LIBRARY_DIR, Path(tempfile.gettempdir()))
    preloaded = [libraries / PHANTOM.name, *build.preloaded(libraries)]
    return environment(
        {
            variables.PHANTOM: "1",
            variables.RECORD: "0",
            variables.DEVICE: choose_device(gpu).environment_text(),
            variables.LIBRARIES: build.libraries_text(),
            variables.NUM_DEVICES: str(num_gpus),
            "LD_PRELOAD": ":".join(map(str, preloaded)),
            "LD_LIBRARY_PATH": str(libraries),
            **others,
        }
    )


def recorder(python: Path, directory: Path) -> RecordProgram:
    """`record("peaks.py", options=("--mode", "events"), gpu="t4")` runs `ullage record --json`."""

    def record(
        *program: str, options: tuple[str, ...] = (), gpu: str = "h100-80gb", **env: str
    ) -> Outcome:
        command = [
            sys.executable, "-c", MAIN, "record", "--json", "--python", str(python),
            "--snapshot", str(directory / "snapshot.pickle"),
            *(word for word in options if not word.startswith("[record] ")),
            "--", find_program(program[0]), *program[1:],
        ]  # fmt: skip
        write_settings(directory, "record", options)
        (directory / "snapshot.pickle").unlink(missing_ok=True)
        env = {"XDG_RUNTIME_DIR": str(directory), **env}
        values = dict(bare_environment(python, gpu=gpu, **env))
        return Outcome(*execute(command, directory, values), directory)

    return record
