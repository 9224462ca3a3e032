"""`ullage estimate --speech`, `--diffusion` and `--index`: what is served beside text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage.cli.options.estimate import EstimateOptions
from ullage.errors import SpecError

if TYPE_CHECKING:
    from ullage.api.estimate import WorkloadAnswer


def show_workload(options: EstimateOptions) -> int:
    """Estimates a workload and shows it; returns what to exit with."""
    from ullage.report.text.workloads import workload_blocks

    answer = _answer(options)
    target = options.target
    return target.give(
        answer, workload_blocks(answer.estimate), exit_code=int(answer.fits is False)
    )


def _answer(options: EstimateOptions) -> WorkloadAnswer:
    from ullage.api.estimate import estimate_diffusion, estimate_index, estimate_speech

    if options.index is not None:
        return estimate_index(options.index, model=options.model, gpu=options.gpu)
    if options.model is None:
        raise SpecError("no model was named; `ullage estimate --models` lists those built in")
    if options.speech is not None:
        streams, at_once = options.speech_counts
        return estimate_speech(options.model, streams, at_once=at_once, gpu=options.gpu)
    return estimate_diffusion(
        options.model,
        options.diffusion or "",
        images=options.batch or 1,
        side=options.image or 512,
        precision=options.precision or "fp16",
        gpu=options.gpu,
    )
