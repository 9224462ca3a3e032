"""A job: the options that decide a run, checked before anything starts.

job = make_job(["train.py"], device=choose_device("h100-80gb"), python=None, options=options)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ullage.ground.errors import SpecError
from ullage.ground.native.libraries import LIBRARY_DIR
from ullage.ground.protocol.run import Platform
from ullage.players.inside.values.assume import Assumed
from ullage.players.phantom.device import PhantomDevice
from ullage.players.phantom.launch import (
    LaunchOptions,
    check_platform,
    make_environment,
    run_directory,
)
from ullage.players.phantom.launcher import launcher_of, ranks_of
from ullage.players.phantom.peer_ranks import PeerRanks, peer_ranks
from ullage.players.phantom.program import UserProgram, resolve_program
from ullage.players.phantom.rank import check_num_gpus
from ullage.players.phantom.torch_build import TorchBuild, check_torch, find_torch
from ullage.verbs.run.options import RunOptions, WrittenPlan

if TYPE_CHECKING:
    from ullage.act.techniques.plan import Plan
    from ullage.log.kernel_times import KernelTimes

# What is run and on which device, where its files are, and who hears of it: other fields of the job
# have the first, and the last is of this process alone.
_OF_PARENT: dict[str, Any] = {"program": ()} | dict.fromkeys((
    "gpu", "gpus", "memory", "capability", "budget", "world_size", "ranks", "local_world_size",
    "sweep", "plan", "guard", "python", "measured", "nvml", "snapshot", "say", "on_progress",
    "on_failure",
))  # fmt: skip
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def make_options(options: RunOptions) -> LaunchOptions:
    """The options as in a run without a snapshot; SpecError where one is not possible, and
    PlanError where a plan cannot be read.
    """
    plan = None if options.plan is None else read_plan(options.plan)
    alloc_conf = options.alloc_conf
    if plan is not None and alloc_conf is not None and plan.variables.keys() & ALLOCATOR_VARIABLES:
        raise SpecError(
            f"alloc_conf={alloc_conf!r} and the plan both set the allocator up; leave one of them "
            "out"
        )
    is_virtual = options.clock == "virtual"
    if options.clock not in ("real", "virtual"):
        raise SpecError(f"clock={options.clock!r}; expected 'real' or 'virtual'")
    measured = None if options.measured is None else _read_kernels(options.measured, is_virtual)
    is_timed = _names_links(options.interconnect) or options.time or options.price is not None
    Assumed.parse(options.assume)
    _parse_platform(options.platform)
    return LaunchOptions(
        replace(options, **_OF_PARENT),
        has_snapshot=False,
        plan=plan,
        has_clock=is_timed or is_virtual or measured is not None,
        measured=measured,
    )


def _read_kernels(path: str | os.PathLike[str], is_virtual: bool) -> KernelTimes:  # noqa: FBT001
    from ullage.search.runs.timing import read_kernel_times

    if is_virtual:
        raise SpecError(
            "measured corrects the report, not the clocks that the program reads; leave it or "
            "--clock virtual out"
        )
    return read_kernel_times(Path(path))


def read_plan(plan: str | os.PathLike[str] | WrittenPlan) -> Plan:
    """A plan, or that of a file; raises PlanError where it cannot be read."""
    from ullage.act.techniques.plan import Plan

    if isinstance(plan, str | os.PathLike):
        return Plan.load(os.fspath(plan))
    if not isinstance(plan, Plan):
        raise SpecError(f"plan={plan!r} is not a plan; expected a file, or an ullage.Plan")
    return plan


def _names_links(interconnect: str | None) -> bool:
    """True if links are named; raises SpecError where they cannot be."""
    if interconnect is None:
        return False
    from ullage.clock.interconnect import parse_interconnect

    parse_interconnect(interconnect)
    return True


def _parse_platform(name: str) -> Platform:
    try:
        return Platform(name)
    except ValueError:
        known = " or ".join(platform.value for platform in Platform)
        raise SpecError(f"platform={name!r} is not known; expected {known}") from None


@dataclass(frozen=True, slots=True)
class Job:
    """All that decides a run, checked before anything starts."""

    program: UserProgram
    device: PhantomDevice
    build: TorchBuild
    options: LaunchOptions


def make_job(
    program: Sequence[str],
    *,
    device: PhantomDevice,
    python: str | os.PathLike[str] | None,
    options: LaunchOptions,
    directory: Path | None = None,
) -> Job:
    """Finds the program and its torch; raises as `run` does. It runs in `directory`."""
    check_platform()
    if options.num_devices is not None:
        check_num_gpus(options.num_devices)
    launcher = None if options.rank is None else launcher_of(program)
    user_program = resolve_program(program, python, directory)
    build = check_torch(find_torch(user_program.python), LIBRARY_DIR)
    job = Job(user_program, device, build, options)
    if options.measured is not None and options.measured.gpu != device.gpu.name:
        raise SpecError(
            f"the kernels were recorded on {options.measured.gpu!r}, and the device is "
            f"{device.gpu.name!r}; measurements correct the clock for their own GPU alone"
        )
    if launcher is None:
        return job
    (launched,) = jobs_of_launchers(job, [job.program])
    if isinstance(launched, str):
        raise SpecError(launched)
    return launched


def jobs_of_launchers(job: Job, launchers: Sequence[UserProgram]) -> list[Job | str]:
    """The job as each of these launchers would start a rank of it; or why it starts none."""
    with run_directory() as run_dir:
        environment = make_environment(run_dir, job.device, job.build, job.options)
        started = ranks_of(launchers, environment)
    options = job.options
    return [
        each
        if isinstance(each, str)
        else replace(
            job,
            program=replace(each[0], argv=job.program.argv),
            options=replace(options, variables={**options.variables, **each[1]}),
        )
        for each in started
    ]


@contextmanager
def job_peer_ranks(job: Job, mail: Path) -> Iterator[PeerRanks | None]:
    """While this lasts, a rank that waits for data of another rank has that rank run too;
    None for a job that is not a rank.
    """
    rank = job.options.rank
    if rank is None:
        yield None
        return

    def environment_of(number: int, directory: Path) -> dict[str, str]:
        options = replace(
            job.options, rank=replace(rank, number=number), mail=mail, has_snapshot=False, nvml=None
        )
        return make_environment(directory, job.device, job.build, options)

    with peer_ranks(job.program, mail, environment_of) as peers:
        yield peers
