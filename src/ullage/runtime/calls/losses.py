"""The losses of torch that a script computes itself: one that runs out of memory is run again.

A loss of `torch.nn.functional` writes to nothing, draws nothing and keeps nothing, so it can be
called twice. Before the second call the graphs of the models' calls are let go, which are the
largest thing that is there then; their backward runs the calls again. Nothing of the script runs
twice. Until an error comes, this is one call around another.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ullage.errors import GuardError
from ullage.runtime.calls.activity import Activity
from ullage.runtime.calls.graph import look
from ullage.runtime.calls.record import CallRecord
from ullage.runtime.failure import Failure, is_out_of_memory, release, say, take_failure
from ullage.techniques.applying.changes import Changes

LOSSES = (
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss",
    "cross_entropy", "ctc_loss", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss",
    "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss", "multi_margin_loss",
    "multilabel_margin_loss", "multilabel_soft_margin_loss", "nll_loss", "poisson_nll_loss",
    "smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss",
)  # fmt: skip


def guard_losses(changes: Changes, activity: Activity) -> None:
    """Puts itself around the losses.

    Args:
        changes: what is undone at the end.
        activity: within a guarded call or backward they are left alone, as these run again whole.
    """
    for name in LOSSES:
        loss = getattr(torch.nn.functional, name, None)
        if loss is not None:
            changes.set(torch.nn.functional, name, _guarded(loss, name, activity))


def _guarded(loss: Callable[..., Any], name: str, activity: Activity) -> Callable[..., Any]:
    @functools.wraps(loss)
    def run(*arguments: Any, **keywords: Any) -> Any:
        try:
            return loss(*arguments, **keywords)
        except RuntimeError as error:
            records = _find_records(activity, error)
            if not records:
                raise
            failure = take_failure(error)
        return _run_again(lambda: loss(*arguments, **keywords), name, records, failure, activity)

    # What torch.compile and torch.jit.script see in its place.
    run._torchdynamo_inline = loss  # type: ignore[attr-defined]
    run.__prepare_scriptable__ = lambda: loss  # type: ignore[attr-defined]
    return run


def _find_records(activity: Activity, error: RuntimeError) -> list[CallRecord]:
    """The calls whose graph can be let go after an error in a loss."""
    if not activity.is_idle or not is_out_of_memory(torch, error):
        return []
    return [
        each
        for each in gc.get_objects()
        if type(each) is CallRecord and each.outputs and can_let_go([each])
    ]


def can_let_go(records: Sequence[CallRecord]) -> bool:
    """Whether the graphs of calls lead to nothing but parameters that their guard knows, and the
    outputs are as they were where that counts.
    """
    for record in records:
        try:
            record.check_outputs()
        except GuardError:
            return False
        reach = look(record.outputs or ())
        if reach.records or not all(map(record.owner.knows, reach.leaves)):
            return False
    return True


def _run_again(
    call: Callable[[], Any],
    name: str,
    records: list[CallRecord],
    failure: Failure,
    activity: Activity,
) -> Any:
    """Lets go of the graphs of calls, and calls a loss once more."""
    while records:
        records.pop().let_go(failure)
    release(torch)
    result = call()
    activity.num_recoveries += 1
    say(
        f"out of memory in {name} ({failure.text}): ran it again with the graph of the model's "
        "call let go; backward runs the call again"
    )
    return result
