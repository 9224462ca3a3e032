"""Runs one program several times, with other arguments or on other GPUs: what `ullage run --sweep`
and `ullage.sweep` are.

    sweep = ullage.sweep(["train.py", "--batch-size", "{batch}"], sweep={"batch": [1, 2, 4]},
                         gpu="l4")
    sweep.lines[0].fixed_bytes, sweep.lines[0].bytes_per_unit
    print(sweep.text())
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ullage.answers.verb_answer import VerbAnswer
from ullage.ground.errors import SpecError
from ullage.ground.protocol.option import takes
from ullage.ground.protocol.plain import Mark
from ullage.players.phantom.device import PhantomDevice
from ullage.players.phantom.program import resolve_program
from ullage.search.runs.job import Job, make_job, make_options
from ullage.search.runs.parallel import ParallelRuns
from ullage.search.runs.variables import check_number, check_variable, fill_in
from ullage.verbs.run.function import Run, check_without, device_of
from ullage.verbs.run.options import RunOptions

if TYPE_CHECKING:
    from ullage.answers.block_kinds import Blocks
    from ullage.explain.compare.sweep import Line, Setting, SweepReport


@dataclass(frozen=True, slots=True)
class Sweep(VerbAnswer):
    """A finished sweep: its report, and each run by itself, in the order of the grid."""

    report: Annotated[SweepReport, Mark.FLAT]
    runs: Annotated[tuple[Run, ...], Mark.NO_KEY]

    @property
    def lines(self) -> tuple[Line, ...]:
        """How the peak grows with each variable."""
        return self.report.lines

    @property
    def smallest_gpu(self) -> str | None:
        """The GPU with the least memory, of several, on which everything fits."""
        return self.report.smallest_gpu

    @property
    def exit_code(self) -> int:
        """The exit code of the command line."""
        return int(self.report.exit_code)

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report."""
        from ullage.verbs.run.sweep_text import sweep_blocks

        return sweep_blocks(self.report)

    def plot(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Draws the sweep into a file: .svg, .png or .pdf. Returns where it is.

        Raises:
            SpecError: matplotlib is missing, the file exists, or its kind is not known.
        """
        from ullage.answers.plot import write_plots
        from ullage.verbs.run.sweep_text import sweep_plot

        title = " ".join(self.report.template)
        return write_plots([sweep_plot(self.report)], title, Path(path), force=force)


@takes(RunOptions)
def sweep(options: RunOptions) -> Sweep:
    """Runs a program once for every combination of values and GPUs: `sweep` has the values of each
    variable, and "{batch}" in a word of the program stands for the variable batch.

    Raises:
        SpecError: an option, a variable or the program is not possible.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
    """
    _check_options(options)
    texts = {name: tuple(map(str, values)) for name, values in (options.sweep or {}).items()}
    gpus = options.gpu_names or (None,)
    _check(options.program, texts, gpus)
    devices = [device_of(replace(options, gpu=name)) for name in gpus]
    settings, jobs = _lay_out(options, texts, devices)
    started_s = time.monotonic()
    runs = ParallelRuns(jobs, options.on_progress, options.on_failure)
    runs.run_all()
    from ullage.explain.compare.sweep import Point, explain_sweep

    done = [
        (setting, replace(run, price=options.price))
        for setting, run in zip(settings, runs.results, strict=True)
        if run is not None
    ]
    report = explain_sweep(
        [Point(setting, run) for setting, run in done],
        template=tuple(options.program),
        variables=tuple(texts.items()),
        gpus=tuple(device.usable for device in devices),
        fresh_because=runs.fresh_because,
        wall_s=round(time.monotonic() - started_s, 3),
        was_interrupted=runs.was_interrupted,
    )
    return Sweep(report, tuple(Run(run) for _, run in done))


def _check_options(options: RunOptions) -> None:
    """A sweep is over one process on one device, and keeps its table alone."""
    check_without(options)
    if options.snapshot is not None:
        raise SpecError("a sweep keeps no snapshots; leave --snapshot out, or run one value")
    for flag, value in (
        ("--ranks", options.ranks),
        ("--world-size", options.world_size),
        ("local_world_size", options.local_world_size),
        ("--gpus", options.gpus),
    ):
        if value is not None:
            raise SpecError(f"a sweep does not go with {flag}; leave one of them out")


def _check(
    program: Sequence[str], variables: Mapping[str, tuple[str, ...]], gpus: Sequence[str | None]
) -> None:
    """Raises SpecError where a sweep says what it cannot mean."""
    for name, values in variables.items():
        if not values or "" in values:
            raise SpecError(f"{name!r} has an empty value; for example: {name}=1,2,4")
        check_variable(name, program)
    for what, choices in (("GPU", tuple(map(str, gpus))), *variables.items()):
        twice = next((value for value in choices if choices.count(value) > 1), None)
        if twice is not None:
            raise SpecError(f"{what} has {twice!r} twice; give each value once")
    check_number(len(gpus) * math.prod(len(values) for values in variables.values()))


def _lay_out(
    options: RunOptions, variables: Mapping[str, Sequence[str]], devices: Sequence[PhantomDevice]
) -> tuple[list[Setting], list[Job]]:
    """The grid, the last variable changing fastest and the GPU slowest: what each run is told, and
    the run.
    """
    from ullage.explain.compare.sweep import Setting

    launched = make_options(options)
    settings: list[Setting] = []
    jobs: list[Job] = []
    for device, values in itertools.product(devices, itertools.product(*variables.values())):
        setting = tuple(zip(variables, values, strict=True))
        words = [fill_in(word, dict(setting)) for word in options.program]
        if not jobs:
            jobs.append(make_job(words, device=device, python=options.python, options=launched))
        else:
            again = resolve_program(words, options.python)
            job = replace(jobs[0], program=again, device=device)
            if again.python != jobs[0].program.python:
                job = make_job(words, device=device, python=options.python, options=launched)
            jobs.append(job)
        settings.append(Setting(setting, device.usable))
    return settings, jobs
