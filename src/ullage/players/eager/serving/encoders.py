"""Models whose encoder sets what a server can be asked: embedding models, Whisper, BART.

    plan, remark = bound_context(model, plan)       # Whisper's decoder has 448 positions
    verdict, reason = judge_encoder(plan, 4, terms)

An encoder keeps nothing of a request once it has been read, so there is no cache, and requests
beyond a step's tokens wait for the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ullage.facts.families.layers import Cross, Encoder, Model
from ullage.players.eager.serving.serving_plan import ServingPlan
from ullage.players.eager.term import Term, Verdict


def is_encoder_only(model: Model) -> bool:
    """True if no layer keeps anything: models of embeddings and classes."""
    return all(isinstance(layer, Encoder) for layer in model.layers)


def bound_context(model: Model, plan: ServingPlan) -> tuple[ServingPlan, str]:
    """The plan with no more tokens than the model has positions, and a sentence where it had more.

    An encoder, and a decoder that reads one, has a table of positions that ends; others may go on.
    """
    has_table = any(isinstance(layer, Encoder | Cross) for layer in model.layers)
    if not has_table or model.context is None or plan.context <= model.context:
        return plan, ""
    part = "the model" if is_encoder_only(model) else "the decoder"
    sentence = (
        f"{part} has {model.context:,} positions, so a request is planned with as many tokens, not "
        f"with {plan.context:,}"
    )
    return replace(plan, context=model.context), sentence


def judge_encoder(plan: ServingPlan, at_once: int, terms: Sequence[Term]) -> tuple[Verdict, str]:
    """Judges if an encoder's server fits: its weights and a step, whatever the number of users.

    Args:
        plan: the plan.
        at_once: requests of the plan's length in a step.
        terms: the parts of the GPU; the last is what they leave.
    """
    left = terms[-1]
    if left.high_bytes < 0:
        return Verdict.DOES_NOT_FIT, "weights and a step take more than the GPU has"
    if left.low_bytes < 0:
        return Verdict.MAY_FIT, "weights and a step may take more than the GPU has"
    each = "a request" if plan.users == 1 else "any number of requests"
    return Verdict.FITS, (
        f"an encoder keeps nothing, so {each} of {plan.context:,} tokens fit; "
        f"{max(at_once, 1):,} in a step"
    )
