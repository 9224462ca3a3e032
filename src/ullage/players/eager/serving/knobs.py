"""The changes of a plan that leave a server more room, the best first.

for knob in find_serving_knobs(config, plan):
    print(knob.change, knob.gain_bytes, knob.users)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from ullage.facts.families.config import COUNTED, Config
from ullage.facts.families.kv_cache import PRECISIONS
from ullage.ground.errors import SpecError
from ullage.players.eager.serving.engines.vllm_releases import find_release
from ullage.players.eager.serving.model_weights import FORMATS
from ullage.players.eager.serving.serving import estimate_serving
from ullage.players.eager.serving.serving_plan import ServingEstimate, ServingPlan
from ullage.players.eager.serving.vllm_terms import make_step

_MORE_SHARE: Final = 0.95
_FEWER: Final = 4


@dataclass(frozen=True, slots=True)
class ServingKnob:
    """A change of the plan, and what it does.

    Attributes:
        change: the option, such as "--kv fp8", or the setting, such as "eager = true".
        gain_bytes: what the cache of one GPU gains, likely; of a narrower cache: what its bytes
            hold more, in bytes of the present one.
        users: requests of the plan's context that fit at least, at once.
    """

    change: str
    gain_bytes: int
    users: int


def find_serving_knobs(config: Config, plan: ServingPlan) -> tuple[ServingKnob, ...]:
    """The changes that leave room for more, the best first; none without a GPU.

    Raises:
        SpecError: the model or the plan is not possible.
    """
    if plan.gpu is None or plan.kv_bytes is not None or config.model_type == COUNTED:
        return ()
    now = estimate_serving(config, plan)
    knobs = []
    for change, fields in _changes(plan, now):
        try:
            changed = estimate_serving(config, replace(plan, **fields))
        except SpecError:  # a precision that the layers do not have, or heads that cannot be cut
            continue
        if not now.request_bytes or not changed.request_bytes:
            continue
        gain = round(changed.kv_bytes[1] * now.request_bytes / changed.request_bytes)
        gain -= now.kv_bytes[1]
        if gain > 0:
            knobs.append(ServingKnob(change, gain, changed.users[0]))
    return tuple(sorted(knobs, key=lambda knob: -knob.gain_bytes))


def _changes(plan: ServingPlan, now: ServingEstimate) -> Iterator[tuple[str, dict[str, Any]]]:
    bits = FORMATS[now.plan.weights].bits
    yield from (
        (f"--weights {name}", {"weights": name})
        for name in ("fp8", "int4")
        if FORMATS[name].bits < bits
    )
    if PRECISIONS[plan.precision].bits > PRECISIONS["fp8"].bits and plan.engine == "vllm":
        yield "--kv fp8", {"kv": "fp8"}
    yield f"--tensor {2 * plan.tensor_parallel}", {"tensor_parallel": 2 * plan.tensor_parallel}
    if plan.engine != "vllm" or plan.gpu is None:
        return
    release = find_release(plan.engine_version)
    if (plan.utilization or release.utilization) < _MORE_SHARE:
        yield f"--utilization {_MORE_SHARE}", {"utilization": _MORE_SHARE}
    step = make_step(plan, plan.gpu, release)
    if step.requests >= _FEWER:
        fewer = step.requests // _FEWER
        yield f"--max-seqs {fewer}", {"max_seqs": fewer}
    if step.tokens >= _FEWER:
        fewer = step.tokens // _FEWER
        yield f"batched_tokens = {fewer}", {"max_batched_tokens": fewer}
    if plan.has_graphs:
        yield "eager = true", {"has_graphs": False}
    if plan.is_cached is None and plan.has_graphs:
        yield "cached = true", {"is_cached": True}
