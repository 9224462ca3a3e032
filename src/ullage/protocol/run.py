"""The variables of one run as records: written by the parent, read by the child.

environment |= RunVariables(run_dir, device="name=A10", ...).to_environment()   # None: unset it
run = RunVariables.from_environment(os.environ)
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ullage.protocol import variables


class Platform(enum.Enum):
    """The system with the GPU, by the order in which its CUDA driver hands out addresses: Linux's
    downwards, that of Windows and WSL2 upwards (phantom/csrc/machine/address_space.c).
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


@dataclass(frozen=True, slots=True)
class RunVariables:
    """What a process on the phantom is started with.

    Attributes:
        run_dir: the directory of the run.
        device: the device's properties, as the native library reads them.
        libraries: the versions of NVIDIA's libraries, likewise.
        num_devices: how many devices there are.
        platform: the system whose driver's order of addresses they have.
        parent: the number of the process with which this one ends; None: it may outlive it.
        progress: the file to which each step appends; None: nobody reads it.
        max_steps: after how many steps the program ends; None: when it likes.
        has_snapshot: whether a memory snapshot is written.
        has_clock: whether what streams are given is logged, for the clock.
        virtual_time: the GPU and the links by which the program's own clocks go, such as
            "h100-80gb|nvlink"; empty: they are real.
        has_real_init: whether weights on the CPU are really initialised.
        has_dummy_weights: whether missing weight files get dummy content.
        has_values: whether small values are computed on the CPU.
        assumptions: what is assumed of unknown values, such as "nonzero=half"; empty: the worst
            case.
        lone_rank: the rank that is played without its peers, if any.
        inputs: the directory in which each process notes the files that it reads; None: none does.
        nvml: the directory in which each process tells NVML programs what it uses of the devices;
            None: none does.
    """

    run_dir: Path
    device: str = ""
    libraries: str = ""
    num_devices: int = 1
    platform: Platform = Platform.LINUX
    parent: int | None = None
    progress: Path | None = None
    max_steps: int | None = None
    has_snapshot: bool = True
    has_clock: bool = False
    virtual_time: str = ""
    has_real_init: bool = False
    has_dummy_weights: bool = False
    has_values: bool = True
    assumptions: tuple[str, ...] = ()
    lone_rank: LoneRank | None = None
    inputs: Path | None = None
    nvml: Path | None = None

    def to_environment(self) -> dict[str, str | None]:
        """The variables of a process; None: one that it must not inherit."""
        rank = self.lone_rank
        return {
            variables.PHANTOM: "1",
            variables.RUN_DIR: str(self.run_dir),
            variables.PARENT: _text(self.parent),
            variables.DEVICE: self.device,
            variables.NUM_DEVICES: str(self.num_devices),
            variables.LIBRARIES: self.libraries,
            variables.PLATFORM: self.platform.value,
            variables.SNAPSHOT: str(int(self.has_snapshot)),
            variables.PROGRESS: _text(self.progress),
            variables.STEPS: _text(self.max_steps),
            variables.REAL_INIT: _flag(is_set=self.has_real_init),
            variables.DUMMY_WEIGHTS: _flag(is_set=self.has_dummy_weights),
            variables.VALUES: None if self.has_values else "0",
            variables.ASSUME: ",".join(self.assumptions) or None,
            variables.RANK: None if rank is None else f"{rank.rank}/{rank.world_size}",
            variables.MAIL: None if rank is None else str(rank.mail),
            variables.INPUTS: _text(self.inputs),
            variables.NVML: _text(self.nvml),
            variables.CLOCK: _flag(is_set=self.has_clock),
            variables.VIRTUAL_TIME: self.virtual_time or None,
        }

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> RunVariables:
        """What a process was started with."""
        steps, parent = environment.get(variables.STEPS), environment.get(variables.PARENT)
        return cls(
            run_dir=Path(environment[variables.RUN_DIR]),
            device=environment.get(variables.DEVICE, ""),
            libraries=environment.get(variables.LIBRARIES, ""),
            num_devices=int(environment.get(variables.NUM_DEVICES, "1")),
            platform=Platform(environment.get(variables.PLATFORM, "linux")),
            parent=int(parent) if parent else None,
            progress=_path(environment, variables.PROGRESS),
            max_steps=int(steps) if steps else None,
            has_snapshot=environment.get(variables.SNAPSHOT, "1") == "1",
            has_clock=environment.get(variables.CLOCK) == "1",
            virtual_time=environment.get(variables.VIRTUAL_TIME, ""),
            has_real_init=environment.get(variables.REAL_INIT) == "1",
            has_dummy_weights=environment.get(variables.DUMMY_WEIGHTS) == "1",
            has_values=environment.get(variables.VALUES, "1") == "1",
            assumptions=tuple(filter(None, environment.get(variables.ASSUME, "").split(","))),
            lone_rank=_lone_rank(environment),
            inputs=_path(environment, variables.INPUTS),
            nvml=_path(environment, variables.NVML),
        )


@dataclass(frozen=True, slots=True)
class PlanVariables:
    """What a process is to do with the model that it trains; on the phantom, or on a real GPU.

    Attributes:
        plan: the file of the plan that is applied; None: none is.
        notes: the directory for its outcome and for the description; None where there is neither.
        describes: whether the model is described.
        replays: whether the plan is replayed on the CPU in place of the training.
    """

    plan: Path | None = None
    notes: Path | None = None
    describes: bool = False
    replays: bool = False

    def to_environment(self) -> dict[str, str | None]:
        """The variables of a process; None: one that it must not inherit."""
        return {
            variables.PLAN: _text(self.plan),
            variables.PLAN_NOTES: _text(self.notes),
            variables.DESCRIBE: _flag(is_set=self.describes),
            variables.REPLAY: _flag(is_set=self.replays),
        }

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> PlanVariables:
        """What a process was started with."""
        return cls(
            _path(environment, variables.PLAN),
            _path(environment, variables.PLAN_NOTES),
            environment.get(variables.DESCRIBE) == "1",
            environment.get(variables.REPLAY) == "1",
        )


def launcher_rank() -> int | None:
    """The rank that a launcher gave this process."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() else None


def _text(value: Path | int | None) -> str | None:
    return None if value is None else str(value)


def _flag(*, is_set: bool) -> str | None:
    return "1" if is_set else None


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    text = environment.get(name)
    return Path(text) if text else None


def _lone_rank(environment: Mapping[str, str]) -> LoneRank | None:
    rank, _, world_size = environment.get(variables.RANK, "").partition("/")
    if not world_size:
        return None
    return LoneRank(int(rank), int(world_size), Path(environment[variables.MAIL]))
