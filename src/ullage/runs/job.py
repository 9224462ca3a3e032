"""What decides a run, checked before anything starts.

job = make_job(["train.py"], device=choose_device("h100-80gb"), python=None, options=options)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ullage.errors import SpecError
from ullage.native.libraries import LIBRARY_DIR
from ullage.phantom.device import PhantomDevice
from ullage.phantom.launch import RunOptions, check_platform, make_environment, run_directory
from ullage.phantom.launcher import launcher_of, ranks_of
from ullage.phantom.peer_ranks import PeerRanks, peer_ranks
from ullage.phantom.program import UserProgram, resolve_program
from ullage.phantom.torch_build import TorchBuild, check_torch, find_torch
from ullage.protocol.run import Platform
from ullage.record.values.assume import Assumed

if TYPE_CHECKING:
    from ullage.techniques.plan import Plan
    from ullage.trace.kernel_times import KernelTimes

_ALLOCATOR = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}


class ProgramOptions(TypedDict, total=False):
    """What `ullage.run` calls the options that decide how a program runs, one or many times."""

    alloc_conf: str | None
    steps: int | None
    real_init: bool
    dummy_weights: bool
    values: bool
    assume: Sequence[str]
    plan: str | os.PathLike[str] | Plan | None
    platform: str
    time: bool
    interconnect: str | None
    clock: str
    measured: str | os.PathLike[str] | None


def make_options(
    *,
    alloc_conf: str | None = None,
    steps: int | None = None,
    real_init: bool = False,
    dummy_weights: bool = False,
    values: bool = True,
    assume: Sequence[str] = (),
    plan: str | os.PathLike[str] | Plan | None = None,
    platform: str = "linux",
    time: bool = False,
    interconnect: str | None = None,
    clock: str = "real",
    measured: str | os.PathLike[str] | None = None,
) -> RunOptions:
    """The options as in a run without a snapshot; SpecError where one is not possible, and
    PlanError where a plan cannot be read.
    """
    loaded_plan = None if plan is None else _load_plan(plan)
    if (
        loaded_plan is not None
        and alloc_conf is not None
        and loaded_plan.variables.keys() & _ALLOCATOR
    ):
        raise SpecError(
            f"alloc_conf={alloc_conf!r} and the plan both set the allocator up; leave one of them "
            "out"
        )
    return RunOptions(
        alloc_conf,
        steps,
        has_snapshot=False,
        has_real_init=real_init,
        has_dummy_weights=dummy_weights,
        has_values=values,
        assumed=Assumed.parse(assume),
        plan=loaded_plan,
        platform=_parse_platform(platform),
        has_clock=_names_links(interconnect) or time or _is_virtual(clock) or measured is not None,
        interconnect=interconnect,
        has_virtual_time=_is_virtual(clock),
        measured=None if measured is None else _read_kernels(measured, clock),
    )


def _read_kernels(path: str | os.PathLike[str], clock: str) -> KernelTimes:
    from ullage.runs.timing import read_kernel_times

    if _is_virtual(clock):
        raise SpecError(
            "--measured corrects the report, not the clocks that the program reads; leave it or "
            "--clock virtual out"
        )
    return read_kernel_times(Path(path))


def _load_plan(plan: str | os.PathLike[str] | Plan) -> Plan:
    from ullage.techniques.plan import Plan

    return plan if isinstance(plan, Plan) else Plan.load(os.fspath(plan))


def _names_links(interconnect: str | None) -> bool:
    """Whether links are named; raises SpecError where they cannot be."""
    if interconnect is None:
        return False
    from ullage.clock.interconnect import parse_interconnect

    parse_interconnect(interconnect)
    return True


def _is_virtual(clock: str) -> bool:
    """Whether the program's clocks follow the device; raises SpecError."""
    if clock not in ("real", "virtual"):
        raise SpecError(f"clock={clock!r}; expected 'real' or 'virtual'")
    return clock == "virtual"


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
    options: RunOptions


def make_job(
    program: Sequence[str],
    *,
    device: PhantomDevice,
    python: str | os.PathLike[str] | None,
    options: RunOptions,
    directory: Path | None = None,
) -> Job:
    """Finds the program and its torch; raises as `run` does. It runs in `directory`."""
    check_platform()
    launcher = None if options.rank is None else launcher_of(program)
    interpreter = None if python is None else os.fspath(python)
    user_program = resolve_program(program, interpreter, directory)
    build = check_torch(find_torch(user_program.python), LIBRARY_DIR)
    job = Job(user_program, device, build, options)
    if options.measured is not None and options.measured.gpu != device.gpu.name:
        raise SpecError(
            f"the kernels were recorded on {options.measured.gpu!r}, and the device is "
            f"{device.gpu.name!r}; measurements correct the clock for their own GPU alone"
        )
    return job if launcher is None else _as_one_rank(job)


def _as_one_rank(job: Job) -> Job:
    with run_directory() as run_dir:
        environment = make_environment(run_dir, job.device, job.build, job.options)
        (started,) = ranks_of([job.program], environment)
    if isinstance(started, str):
        raise SpecError(started)
    program, variables = started
    all_variables = {**job.options.variables, **variables}
    return replace(job, program=program, options=replace(job.options, variables=all_variables))


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
