"""What `ullage run` was given, one field for each of its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ullage.cli.output import Output, named_fields
from ullage.errors import SpecError
from ullage.runs.job import ProgramOptions


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The parameters of `ullage run`, named as there."""

    program: tuple[str, ...]
    gpu: str | None
    sweep: tuple[str, ...]
    plot: Path | None
    memory: str | None
    capability: str | None
    budget: str | None
    platform: str
    gpus: int | None
    world_size: int | None
    ranks: str | None
    local_world_size: int | None
    alloc_conf: str | None
    steps: int | None
    python: str | None
    real_init: bool
    dummy_weights: bool
    values: bool
    assume: tuple[str, ...]
    try_remedies: bool
    plan: Path | None
    guard: tuple[str, ...] | None
    resume: tuple[str, ...]
    snapshot: Path | None
    output: Path | None
    html: Path | None
    time: bool
    price: float | None
    interconnect: str | None
    clock: str
    measured: Path | None
    timeline: Path | None
    nvml: Path | None
    as_json: bool
    full: bool
    force: bool
    quiet: bool

    @property
    def gpu_names(self) -> list[str] | None:
        """The GPUs to run on; None: none was named."""
        return None if self.gpu is None else self.gpu.split(",")

    @property
    def is_sweep(self) -> bool:
        """Whether the program runs several times: with several values or on several GPUs."""
        return bool(self.sweep) or len(self.gpu_names or ()) > 1

    @property
    def has_many_ranks(self) -> bool:
        """Whether several ranks of a job run: "0,7" or "distinct"."""
        return self.ranks is not None and not self.ranks.isdecimal()

    @property
    def target(self) -> Output:
        """Where the result goes."""
        return Output(
            is_json=self.as_json,
            is_quiet=self.quiet,
            path=self.output,
            force=self.force,
            is_full=self.full,
        )

    @property
    def of_program(self) -> ProgramOptions:
        """The options that decide how the program runs, as `ullage.run` names them."""
        has_time = self.time or self.timeline is not None
        return named_fields(self, ProgramOptions, time=has_time)


def check_guard(guard: tuple[str, ...] | None, plan: Path | None, resume: tuple[str, ...]) -> None:
    """Raises SpecError where these options do not go together."""
    if guard is not None and plan is not None:
        raise SpecError("--plan and --guard are given; expected one: a plan can be a rung")
    if guard is None and resume:
        raise SpecError("--resume is for restarts; add --guard, which starts a program again")
