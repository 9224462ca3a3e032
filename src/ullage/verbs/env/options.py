"""The options of `ullage env`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ullage.ground.protocol.option import ARGUMENT, HelpSection

CONTENTS = HelpSection("Options")


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """The contents that a user requests of a small environment."""

    torch: str | None = CONTENTS("Version of PyTorch; default: the newest.", "VERSION")
    requirements: Sequence[Path] = CONTENTS(
        "Also install the packages that this file lists; repeatable.", "FILE",
        "-r", "--requirement", default=(),
    )  # fmt: skip
    with_triton: bool = CONTENTS.switch("Install Triton, which torch.compile needs.")
    python: Path | None = CONTENTS(
        "Python to create it with; default: the one that runs ullage.", "PATH"
    )


@dataclass(frozen=True, slots=True)
class EnvOptions(EnvironmentSpec):
    """Where it is, too, and whether another is replaced."""

    directory: Path = ARGUMENT("", "DIR")
    force: bool = CONTENTS.switch("Replace an environment with other contents.")
