"""The smallest GPU of the catalogue on which a program fits, under the leanest plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from ullage.act.techniques.plan import Plan
from ullage.explain.run import RunReport
from ullage.explain.verdict import Verdict
from ullage.facts.gpus.catalog import Gpu
from ullage.ground.protocol.plain import As
from ullage.search.costs.measure import Runner, RunRequest

# Other GPU generations use other kernels, with other workspaces. A GPU with less than this share of
# the memory that this one needs counts as too small; larger ones are tried.
_NEEDED = 0.9


@dataclass(frozen=True, slots=True)
class Smallest:
    """The smallest GPU.

    Attributes:
        gpu: its slug.
        name: of the plan under which the program fits.
        used_bytes: the peak of the memory in use on it.
        total_bytes: its memory.
        too_small: the smaller GPUs that were tried, and why the program does not fit.
    """

    gpu: str
    name: str
    used_bytes: Annotated[int, As("peak_used_bytes")]
    total_bytes: int
    too_small: Mapping[str, str]


def find_smallest(
    run: Runner, plans: Mapping[str, Plan | None], catalogued: Sequence[Gpu]
) -> Smallest | None:
    """The first GPU, by memory, on which one of these plans fits.

    None: there is none, or no plan ran with unlimited memory.
    """
    requests = [RunRequest(plan) for plan in plans.values()]
    ran = [report for report in run(requests) if report.verdict is Verdict.FITS and report.devices]
    if not ran:
        return None
    needed = min(_least_bytes(report) for report in ran)
    too_small: dict[str, str] = {}
    for gpu in sorted(catalogued, key=lambda gpu: (gpu.total_bytes, gpu.slug)):
        if gpu.total_bytes - gpu.context_high_bytes < _NEEDED * needed:
            continue
        reports = run([RunRequest(plan, gpu) for plan in plans.values()])
        for name, report in zip(plans, reports, strict=True):
            if report.verdict is Verdict.FITS:
                used = max(device.peak_used_bytes for device in report.devices)
                return Smallest(gpu.slug, name, used, gpu.total_bytes, too_small)
        too_small[gpu.slug] = reports[0].reason
    return None


def _least_bytes(report: RunReport) -> int:
    """The least memory that a run needs besides the context: the allocator can free its cache."""
    return max(
        device.totals.peak_allocated_bytes + device.totals.non_torch_bytes
        for device in report.devices
    )
