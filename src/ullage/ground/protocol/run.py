"""The variables of one run as records: written by the parent, read by the child.

environment |= RunVariables(run_dir, device="name=A10", ...).to_environment()   # None: unset it
run = RunVariables.from_environment(os.environ)
"""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from ullage.ground.protocol import variables


class Platform(enum.Enum):
    """The system with the GPU, by the order in which its CUDA driver hands out addresses: Linux's
    downwards, that of Windows and WSL2 upwards (players/phantom/csrc/machine/address_space.c).
    """

    LINUX = "linux"
    WINDOWS = "windows"

    @property
    def other(self) -> Platform:
        """The one with the other order."""
        return Platform.WINDOWS if self is Platform.LINUX else Platform.LINUX


@dataclass(frozen=True, slots=True)
class LoneRank:
    """A rank that is played without its peers.

    Attributes:
        rank: its number.
        world_size: the number of ranks.
        mail: the directory shared by the ranks that are played together.
    """

    rank: int
    world_size: int
    mail: Path

    @classmethod
    def parse(cls, text: str) -> LoneRank:
        """Reads RANK/WORLD_SIZE/DIRECTORY."""
        rank, world_size, mail = text.split("/", 2)
        return cls(int(rank), int(world_size), Path(mail))


class _Form(NamedTuple):
    """How the value of a field is written in a variable, and read from it."""

    read: Callable[[str], Any]
    write: Callable[[Any], str] = str


_TEXT: Final = _Form(str)
_PATH: Final = _Form(Path)
_NUMBER: Final = _Form(int)
_FLAG: Final = _Form(lambda text: text == "1", lambda is_set: str(int(is_set)))
_PLATFORM: Final = _Form(Platform, lambda platform: platform.value)
_OBJECT: Final = _Form(json.loads, json.dumps)
_RANK: Final = _Form(LoneRank.parse, lambda lone: f"{lone.rank}/{lone.world_size}/{lone.mail}")


def _in(name: str, form: _Form) -> dict[str, Any]:
    """The variable of a field, which has its default where that is not set."""
    return {"name": name, "form": form}


@dataclass(frozen=True, slots=True)
class _Variables:
    def to_environment(self) -> dict[str, str | None]:
        """The variables of a process; None: one that it must not inherit."""
        environment = {}
        for each in fields(self):
            value, form = getattr(self, each.name), each.metadata["form"]
            name = each.metadata["name"]
            is_unset = value in (None, {}) or value is each.default is False
            environment[name] = None if is_unset else form.write(value)
        return environment

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Reads what a process was started with."""
        return cls(
            **{
                each.name: each.metadata["form"].read(environment[each.metadata["name"]])
                for each in fields(cls)
                if environment.get(each.metadata["name"])
            }
        )


@dataclass(frozen=True, slots=True)
class RunVariables(_Variables):
    """The variables that a process on the phantom is started with.

    Attributes:
        run_dir: the directory of the run.
        options: the options of `ullage run`, by the names of the fields of `RunOptions`.
        device: the device's properties, as the native library reads them.
        libraries: the versions of NVIDIA's libraries, likewise.
        num_devices: how many devices there are.
        platform: the system whose driver's order of addresses they have.
        parent: the number of the process with which this one ends; None: it may outlive it.
        progress: the file to which each step appends; None: nobody reads it.
        has_snapshot: whether a memory snapshot is written.
        has_clock: whether what streams are given is logged, for the clock.
        virtual_time: the GPU and the links by which the program's own clocks go, such as
            "h100-80gb|nvlink"; empty: they are real.
        lone_rank: the rank that is played without its peers, if any.
        inputs: the directory in which each process notes the files that it reads; None: none does.
        nvml: the directory in which each process tells NVML programs what it uses of the devices;
            None: none does.
    """

    run_dir: Path = field(metadata=_in(variables.RUN_DIR, _PATH))
    options: Mapping[str, Any] = field(
        default_factory=dict, metadata=_in(variables.OPTIONS, _OBJECT)
    )
    device: str = field(default="", metadata=_in(variables.DEVICE, _TEXT))
    libraries: str = field(default="", metadata=_in(variables.LIBRARIES, _TEXT))
    num_devices: int = field(default=1, metadata=_in(variables.NUM_DEVICES, _NUMBER))
    platform: Platform = field(default=Platform.LINUX, metadata=_in(variables.PLATFORM, _PLATFORM))
    parent: int | None = field(default=None, metadata=_in(variables.PARENT, _NUMBER))
    progress: Path | None = field(default=None, metadata=_in(variables.PROGRESS, _PATH))
    has_snapshot: bool = field(default=True, metadata=_in(variables.SNAPSHOT, _FLAG))
    has_clock: bool = field(default=False, metadata=_in(variables.CLOCK, _FLAG))
    virtual_time: str = field(default="", metadata=_in(variables.VIRTUAL_TIME, _TEXT))
    lone_rank: LoneRank | None = field(default=None, metadata=_in(variables.RANK, _RANK))
    inputs: Path | None = field(default=None, metadata=_in(variables.INPUTS, _PATH))
    nvml: Path | None = field(default=None, metadata=_in(variables.NVML, _PATH))

    def to_environment(self) -> dict[str, str | None]:
        """The variables of a process on the phantom."""
        return {variables.PHANTOM: "1", **_Variables.to_environment(self)}


@dataclass(frozen=True, slots=True)
class PlanVariables(_Variables):
    """The orders to a process for the model that it trains; on the phantom, or on a real GPU.

    Attributes:
        plan: the file of the plan that is applied; None: none is.
        notes: the directory for its outcome and for the description; None where there is neither.
        describes: whether the model is described.
        replays: whether the plan is replayed on the CPU in place of the training.
    """

    plan: Path | None = field(default=None, metadata=_in(variables.PLAN, _PATH))
    notes: Path | None = field(default=None, metadata=_in(variables.PLAN_NOTES, _PATH))
    describes: bool = field(default=False, metadata=_in(variables.DESCRIBE, _FLAG))
    replays: bool = field(default=False, metadata=_in(variables.REPLAY, _FLAG))


def launcher_rank() -> int | None:
    """The rank that a launcher gave this process."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() else None
