"""A scenario of a model and a recipe: what it takes is estimated, and no program runs.

[scenario.llama]
model = "llama-3.1-8b"
batch = 4
length = 2048
gpu = "h100-80gb"

check_trained(case)                 # what can be known to be wrong before anything runs
estimate_case(case, key, directory) # the run that its log stands for, and the figures for the lock
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ullage.facts.gpus.catalog import find_entry
from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import Misfit, misfit_of
from ullage.ground.units import format_bytes
from ullage.ground.version import __version__
from ullage.players.phantom.device import choose_device
from ullage.verbs.check.gate.cache import CaseFigures
from ullage.verbs.check.gate.lock import Key
from ullage.verbs.check.gate.scenario import RECIPE_KEYS, Case

if TYPE_CHECKING:
    from ullage.explain.run import RunReport
    from ullage.players.eager.training.estimate import TrainingEstimate

_MODEL: Final = "model"


def check_trained(case: Case) -> None:
    """Refuses what can be known to be wrong before anything runs."""
    from ullage.facts.families.find import find_here

    if case.scenario.trained is None or (
        "/" in case.scenario.trained.model and not find_here(_model_of(case))
    ):
        return  # it is on the hub, which is asked once it is needed
    try:
        _estimate(case)
    except SpecError as error:
        misfit = misfit_of(error, RECIPE_KEYS | {_MODEL})
        raise misfit if misfit.keys else Misfit(misfit.problem, _MODEL) from None


def _model_of(case: Case) -> str:
    """A file is beside the configuration."""
    model = "" if case.scenario.trained is None else case.scenario.trained.model
    path = case.scenario.directory / model
    return str(path) if path.exists() else model


def _estimate(case: Case) -> TrainingEstimate:
    from ullage.facts.families.find import find_config
    from ullage.players.eager.training.estimate import complete, estimate_training

    if case.scenario.trained is None:
        raise ValueError(f"{case.name} is of no model")
    config = find_config(_model_of(case)).config
    # Without a GPU its bytes are those of an H100, as a program's are.
    gpu = find_entry(choose_device(case.gpu).gpu.slug)
    return estimate_training(config, complete(config, case.scenario.trained.recipe), gpu)


def estimate_case(case: Case, directory: Path) -> tuple[RunReport, CaseFigures]:
    """The run that the estimate's log stands for, and its figures; the device holds what it takes
    at the upper end.

    Raises:
        SpecError: it cannot be estimated.
    """
    from ullage.explain.program import Program
    from ullage.explain.run import explain_run
    from ullage.explain.snapshot import explain_snapshot
    from ullage.explain.verdict import Verdict
    from ullage.log.compact_format.compact import write_compact
    from ullage.players.eager.training.log import write_log
    from ullage.verbs.check.gate.figures import measure

    began_s = time.monotonic()
    estimate, device = _estimate(case), choose_device(case.gpu)
    snapshot = write_log(estimate)
    report, path = explain_snapshot(snapshot), directory / "estimate.ullage"
    write_compact(snapshot, path)
    if report.record is None:
        raise ValueError(f"{case.name} has a log without a record")
    program = Program((case.text,), pid=0, exit_code=0, wall_s=time.monotonic() - began_s)
    run = explain_run(
        [(report.record, str(path))], program=program, torch=estimate.torch, gpu=device.gpu,
        is_unlimited=device.is_unlimited,
    )  # fmt: skip
    run = replace(run, verdict=Verdict.FITS, reason="")
    if not device.is_unlimited and not estimate.fits:
        ends = " to ".join(map(format_bytes, (estimate.low_bytes, estimate.high_bytes)))
        reason = f"it takes {ends}, and the device has {format_bytes(device.gpu.total_bytes)}"
        run = replace(run, verdict=Verdict.OUT_OF_MEMORY, reason=reason)
    key = Key(estimate.torch, "", device.gpu.slug, __version__, command=case.text)
    measured = {}
    for name, each in measure(run, [report], lambda _: key).items():
        peaks = each.entry.peaks._replace(used_bytes=estimate.high_bytes)
        measured[name] = replace(each, entry=replace(each.entry, peaks=peaks))
    return run, CaseFigures(measured, run.warnings, program.wall_s)
