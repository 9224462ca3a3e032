"""Finds the fastest way to make a program fit: what `ullage fit` and `ullage.fit` are.

    fit = ullage.fit(["train.py"], gpu="rtx-4090")
    print(fit.text())
    fit.plan.save("plan.json")

The program is run as it is, and with each technique by itself, on a phantom that never runs out.
From what these runs took, memory stretch by stretch and work block by block, follows what any
mixture takes (plan/profile.py, plan/cost.py); the best of them are run on the device, the fastest
first, and nothing is called fitting that was not seen to fit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from ullage.errors import SpecError
from ullage.gpus.catalog import load_catalog
from ullage.jobs import Job, ProgramOptions, make_job, make_options
from ullage.phantom.device import PhantomDevice, choose_device
from ullage.plan.findings import FitReport
from ullage.techniques.plan import Plan
from ullage.techniques.technique import Semantics
from ullage.trials import Trials
from ullage.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from ullage.plan.measure import Runner, Wanted

# The steps that a run is cut off after: the first has no optimizer states yet, the third is as all
# that follow.
STEPS = 3


@dataclass(frozen=True, slots=True)
class Fit:
    """A finished search: its report, and the plan."""

    report: FitReport

    @property
    def plan(self) -> Plan | None:
        """The fastest plan that was seen to fit; None: there is none, or none is needed."""
        return self.report.plan

    @property
    def exit_code(self) -> int:
        """What the command line exits with: 0 fits, as it is or under a plan; 1 nothing does."""
        return int(self.report.exit_code)

    @property
    def document(self) -> dict[str, Any]:
        """The document, schema "ullage.fit/1"."""
        from ullage.report.fit import fit_document

        return fit_document(self.report)

    @property
    def html(self) -> str:
        """One self-contained page: the plans, and time against memory."""
        from ullage.report.fit_page import render_fit_page

        return render_fit_page(self.report)

    def text(self, width: int = 80) -> str:
        """The report for people, without colour."""
        from ullage.report.fit import render_fit

        return render_fit(self.report, width)


def fit(
    program: Sequence[str],
    *,
    gpu: str | None = None,
    memory: str | int | None = None,
    capability: str | None = None,
    budget: str | int | None = None,
    allow: str = Semantics.SAME.value,
    objective: str = "time",
    smallest_gpu: bool = False,
    python: str | os.PathLike[str] | None = None,
    on_progress: Callable[[str], None] | None = None,
    on_failure: Callable[[str], None] | None = None,
    **options: Unpack[ProgramOptions],
) -> Fit:
    """Finds the fastest plan under which a program fits a GPU.

    Args:
        program: its words, as for `ullage.run`.
        gpu, memory, capability, python: as for `ullage.run`; one of gpu, memory and budget has to
            be given.
        budget: what may be used of the device, such as "20GiB"; None: all of it.
        allow: "same": techniques that compute the same; "rounding": other precisions too;
            "training": such that change the training too.
        objective: "time": the fastest plan that fits; "memory": that which takes the least memory.
        smallest_gpu: look for the smallest GPU of the catalogue too, some runs more.
        on_progress: called with a line as runs end.
        on_failure: called with the last output of the program where it failed as it is.
        options: alloc_conf, steps (default 3), real_init, dummy_weights, values and assume of
            `ullage.run`.

    Raises:
        SpecError: an option or the program is not possible.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
    """
    device = choose_device(gpu, memory=memory, capability=capability)
    budget_bytes = _budget(device, budget)
    if options.get("plan") is not None:
        raise SpecError("a search makes a plan; leave the other plan out")
    told = {"steps": STEPS, **{key: value for key, value in options.items() if value is not None}}
    job = make_job(
        program,
        device=replace(device, is_unlimited=True),
        python=python,
        options=make_options(**told),  # type: ignore[arg-type]
    )
    from ullage.plan.search import Search

    started_s = time.monotonic()
    semantics, is_for_memory = _semantics(allow), _is_for_memory(objective)
    with Trials(job, on_progress) as trials:
        search = Search(make_runner(trials, job), device.gpu, semantics)
        report = search.leanest(budget_bytes) if is_for_memory else search.fastest(budget_bytes)
        if report.failure and on_failure is not None:
            for text in [*trials.outputs.values()][:1]:
                on_failure(text)
        smallest = search.smallest_gpu(load_catalog()) if smallest_gpu else None
    return Fit(
        replace(
            report,
            program=job.program.argv,
            smallest_gpu=smallest,
            num_runs=trials.num_runs,
            wall_s=time.monotonic() - started_s,
        )
    )


def make_runner(trials: Trials, job: Job) -> Runner:
    """Runs plans, each on its GPU or where memory is without end, with the work or without."""

    def device_of(one: Wanted) -> PhantomDevice:
        return job.device if one.gpu is None else PhantomDevice(one.gpu, is_unlimited=False)

    def run(wanted: Sequence[Wanted]) -> list[Any]:
        jobs = [
            replace(
                job,
                device=device_of(one),
                options=replace(
                    job.options, plan=one.plan, describes=one.describes, has_work=one.has_work
                ),
            )
            for one in wanted
        ]
        return [result.report for result in trials.run(jobs)]

    return run


def _budget(device: PhantomDevice, budget: str | int | None) -> int:
    """What may be used of the device.

    Raises:
        SpecError: nothing says how much there is, or the budget is more than the device has.
    """
    if budget is None:
        if device.is_unlimited:
            raise SpecError("fit into what? give --gpu, --memory or --budget")
        return device.gpu.total_bytes
    size = parse_bytes(budget)
    if size > device.gpu.total_bytes:
        raise SpecError(
            f"a budget of {format_bytes(size)} is more than {device.gpu.slug} has, "
            f"{format_bytes(device.gpu.total_bytes)}; give less, or another --gpu"
        )
    if size <= device.gpu.context_high_bytes:
        raise SpecError(
            f"a budget of {format_bytes(size)} is not more than the driver's own context takes "
            f"({format_bytes(device.gpu.context_high_bytes)} on {device.gpu.slug})"
        )
    return size


def _semantics(allow: str) -> Semantics:
    try:
        return Semantics(allow)
    except ValueError:
        raise SpecError(f"allow={allow!r} is not known; expected: {', '.join(Semantics)}") from None


def _is_for_memory(objective: str) -> bool:
    if objective not in {"time", "memory"}:
        raise SpecError(f"objective={objective!r} is not known; expected: time, memory")
    return objective == "memory"
