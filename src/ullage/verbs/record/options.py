"""The options of `ullage record`, and of `ullage.record_program`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

from ullage.ground.protocol.option import SETTINGS, Command, File, HelpSection, Python, Size
from ullage.ground.protocol.plain import Mark
from ullage.verbs.run.options import OUTPUT, PYTHON

RECORDING = HelpSection("Recording")


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """The options of a recording on the GPU of this machine.

    Attributes:
        program: its words, as they would follow `ullage record --`.
        force: overwrite the file of the recording.
        stdout_to_stderr: the program's own output goes to stderr.
    """

    program: Command
    _: KW_ONLY

    mode: Literal["full", "events", "counters"] = RECORDING(
        "full: allocations with stacks, owners and modules. events: without stacks. counters: "
        "peaks of each step, no cost per allocation. Default: full.",
        default="full",
    )
    snapshot: File | None = OUTPUT(
        "Recording; default: a new file here. A directory: a file for each rank.", "FILE"
    )
    python: Python | None = RECORDING(*PYTHON)
    kernels: bool = RECORDING.switch(
        "Also time the kernels of the third step, for --measured of `ullage run` and `fit`."
    )
    ring: Size = SETTINGS(
        "Host memory for what is recorded; the oldest is dropped. Default: 64MiB.", "SIZE",
        default="64MiB",
    )  # fmt: skip
    every: float | None = SETTINGS(
        "Rewrite the file after a step when this time has passed. Default: 60.", "SECONDS",
        default=60.0,
    )  # fmt: skip
    publish: bool = SETTINGS("Publish the job's state for `ullage watch`.", default=True)
    force: Annotated[bool, Mark.NO_KEY] = False
    stdout_to_stderr: Annotated[bool, Mark.NO_KEY] = False
