"""The section "time" of the run document: how long a step takes, and where its time goes.

An interval is a list of three numbers: the lower bound, the likely value, and the upper bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ullage.clock.price import Expense
from ullage.clock.step_time import Share, StepTime
from ullage.report.document.fields import Document

if TYPE_CHECKING:
    from ullage.estimate.time.serving import ServingTime


def time_document(time: StepTime | None, cost: Expense | None, rank: int | None) -> Document | None:
    """The section, with the rank of the slowest process; None: nothing was timed."""
    if time is None:
        return None
    return {
        "rank": rank,
        "step_s": list(time.step),
        "extremes_s": list(time.extremes or time.step),
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


def serving_time_document(time: ServingTime) -> Document:
    """The section of an estimate of serving."""
    return {
        "prefill_s": list(time.prefill),
        "decode_s": list(time.decode),
        "prompt_tokens": time.prompt,
        "requests": time.users,
        "context_tokens": time.context,
        "num_gpus": time.num_gpus,
        "tokens_per_s": list(time.tokens_per_s),
        "gpu_hour_dollars": time.gpu_hour,
        "million_tokens_dollars": _interval(time.million_tokens),
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


def _price(cost: Expense | None) -> Document | None:
    if cost is None:
        return None
    return {
        "gpu_hour_dollars": cost.gpu_hour,
        "num_gpus": cost.num_gpus,
        "thousand_steps_dollars": list(cost.thousand_steps),
        "million_tokens_dollars": _interval(cost.million_tokens),
    }
