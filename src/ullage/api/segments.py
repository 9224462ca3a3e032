"""Compares ways to checkpoint a program's chain of modules in segments: what
`ullage segments` and `ullage.compare_segments` are.

    found = ullage.compare_segments(["train.py"], gpu="h100-80gb")
    print(found.text())
    found.plan.save("plan.json")
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from ullage.phantom.device import choose_device
from ullage.plan.runner import make_runner, make_search_job
from ullage.runs.job import ProgramOptions
from ullage.runs.trials import Trials
from ullage.techniques.plan import Plan

if TYPE_CHECKING:
    from ullage.plan.sizes.chains import ChainReport


@dataclass(frozen=True, slots=True)
class Segmentations:
    """A finished comparison."""

    report: ChainReport

    @property
    def plan(self) -> Plan | None:
        """The segments under which the least was allocated; None: none ran."""
        return None if self.report.best is None else self.report.best.plan

    @property
    def exit_code(self) -> int:
        """What the command line exits with: 3 where the program failed by itself."""
        return int(self.report.exit_code)

    @property
    def document(self) -> dict[str, Any]:
        """The document, schema "ullage.segments/1"."""
        from ullage.report.document.segments import segments_document

        return segments_document(self.report)

    def text(self, width: int = 80) -> str:
        """The report for people, without colour."""
        from ullage.report.text.segments import render_segments

        return render_segments(self.report, width)


def compare_segments(
    program: Sequence[str],
    chain: str | None = None,
    *,
    gpu: str | None = None,
    python: str | os.PathLike[str] | None = None,
    on_progress: Callable[[str], None] | None = None,
    on_failure: Callable[[str], None] | None = None,
    **options: Unpack[ProgramOptions],
) -> Segmentations:
    """Runs a program with a chain of its modules checkpointed in uniform, square-root and optimal
    segments, with unlimited memory.

    Args:
        program: its words, as for `ullage.run`.
        chain: the path of a torch.nn.Sequential; None: that which keeps the most for backward.
        gpu, python: as for `ullage.run`.
        on_progress: called with a line as runs end.
        on_failure: called with the last output of the program where it failed as it is.
        options: as for `ullage.fit`.

    Raises:
        SpecError: an option or the program is not possible, or there is no such chain.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
    """
    from ullage.plan.sizes.chains import compare_cuts

    device = choose_device(gpu)
    job = make_search_job(program, device, python, **options)
    started_s = time.monotonic()
    with Trials(job, on_progress) as trials:
        report = compare_cuts(make_runner(trials, job), device.gpu, chain)
        if report.failure and on_failure is not None:
            for text in [*trials.outputs.values()][:1]:
                on_failure(text)
    return Segmentations(
        replace(
            report,
            program=job.program.argv,
            num_runs=trials.num_runs,
            wall_s=time.monotonic() - started_s,
        )
    )
