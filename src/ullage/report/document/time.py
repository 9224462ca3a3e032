"""The section "time" of the run document: how long a step takes, and where its time goes.

An interval is a list of three numbers: the lower bound, the likely value, and the upper bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from ullage.clock.price import Cost
from ullage.clock.step_time import Share, StepTime
from ullage.report.document.fields import Document


def time_document(time: StepTime | None, cost: Cost | None, rank: int | None) -> Document | None:
    """The section, with the rank of the slowest process; None: nothing was timed."""
    if time is None:
        return None
    return {
        "rank": rank,
        "step_s": list(time.step),
        "steps_s": [list(step) for step in time.steps],
        "device_idle_s": list(time.device_idle),
        "host_waits_s": list(time.host_waits),
        "kinds": _shares(time.categories),
        "parts": _shares(time.parts),
        "modules": _shares(time.modules),
        "unknown": _shares(time.unknown),
        "flops": time.flops,
        "peak_flops_per_s": time.peak_flops_per_s or None,
        "utilisation": _interval(time.utilisation),
        "tokens_per_step": time.num_tokens or None,
        "tokens_per_s": _interval(time.tokens_per_s),
        "samples_per_step": time.num_samples or None,
        "samples_per_s": _interval(time.samples_per_s),
        "critical": time.critical,
        "price": _price(cost),
        "basis": list(time.basis),
    }


def _interval(interval: Sequence[float] | None) -> list[float] | None:
    return None if interval is None else list(interval)


def _shares(shares: Sequence[Share]) -> list[Document]:
    return [
        {
            "name": share.name,
            "busy_s": list(share.busy),
            "exposed_s": list(share.exposed),
            "num": share.num,
        }
        for share in shares
    ]


def _price(cost: Cost | None) -> Document | None:
    if cost is None:
        return None
    return {
        "gpu_hour_dollars": cost.gpu_hour,
        "num_gpus": cost.num_gpus,
        "thousand_steps_dollars": list(cost.thousand_steps),
        "million_tokens_dollars": _interval(cost.million_tokens),
    }
