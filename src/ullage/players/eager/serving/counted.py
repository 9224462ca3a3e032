"""A server of which no more is known than a number of parameters, such as "13B".

    estimate_counted(config, plan).verdict      # may fit, or does not fit: never fits

Layers and heads are not known, so the KV cache and activations are not counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ullage.facts.families.config import Config
from ullage.ground.units import format_bytes
from ullage.players.eager.serving.model_weights import FORMATS
from ullage.players.eager.serving.serving_plan import ServingEstimate, ServingPlan
from ullage.players.eager.term import Verdict, exact

UNCOUNTED: Final = (
    "only the weights are counted: a number of parameters does not say how many layers and heads "
    "there are, so the KV cache, activations, CUDA graphs and the driver's context come on top; "
    "take a config.json to have them counted"
)


def estimate_counted(config: Config, plan: ServingPlan) -> ServingEstimate:
    """The weights of a number of parameters, cut over the ranks, and what they leave of the GPU.

    Counts: every parameter in the format's bits, as if all were of linear layers.
    Ignores: everything else; UNCOUNTED says so in the answer. Scales of quantised formats, but for
    those of groups.
    Error: a floor, none as such. Source: the formats' (model_weights.py).

    Raises:
        SpecError: the field that holds the number is wrong.
    """
    count: int = config.number("num_parameters", least=1)
    plan = replace(plan, weights="bf16" if plan.weights == "auto" else plan.weights)
    size = FORMATS[plan.weights].matrix_size(-(-count // plan.tensor_parallel), 1)
    terms = [exact("weights", size, f"{count:,} parameters", "the number given")]
    verdict, reason, capacity = None, "no GPU was named", None
    if plan.gpu is not None:
        capacity = plan.gpu.total_bytes
        left = capacity - size
        terms.append(exact("not counted", left, "what the weights leave", "the GPU"))
        verdict = Verdict.MAY_FIT if left > 0 else Verdict.DOES_NOT_FIT
        room = format_bytes(max(left, 0))
        reason = f"the weights leave {room} for the KV cache and all else, which is not counted"
        if left <= 0:
            reason = "the weights alone take more than the GPU has"
    head = config.name, count, plan, capacity, tuple(terms), reason, (UNCOUNTED,)
    return ServingEstimate(*head, verdict=verdict)
