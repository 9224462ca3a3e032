"""Every rank has the whole model and its own batch; gradients are averaged while backward runs.

torch's DistributedDataParallel does it, with gradients as views of its buckets. It wraps a stand-in
for the model, whose forward is the model's own: the program goes on calling its model, which keeps
its name and its keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.techniques.means.rank_groups import (
    begin,
    check_is_eager,
    check_is_whole,
    draw_apart,
    join,
)
from ullage.techniques.technique import Action, Place, Semantics, Technique

if TYPE_CHECKING:
    from ullage.techniques.applying.target import Target

_NAME = "data_parallel"


def _apply(target: Target, _: Action) -> None:
    check_is_whole(target, _NAME)
    check_is_eager(target, _NAME)
    model = target.module("")
    ranks = join(_NAME, model, target.changes)
    target.wrap_forward("", _averaging(model))
    draw_apart(ranks)


def _averaging(model: Any) -> Any:
    """What runs a forward of the model through DistributedDataParallel."""
    from torch import is_grad_enabled, nn

    class Bare(nn.Module):  # type: ignore[misc]
        """Holds the model for its parameters, and runs its forward without its hooks."""

        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = model  # a name that paths leave out

        def forward(self, forward: Any, *arguments: Any, **keywords: Any) -> Any:
            return forward(*arguments, **keywords)

    # Compared with a view into a bucket, a gradient of its own is a second copy of all gradients.
    parallel = nn.parallel.DistributedDataParallel(Bare(), gradient_as_bucket_view=True)

    def run(forward: Any, *arguments: Any, **keywords: Any) -> Any:
        if forward.__self__ is not model or not is_grad_enabled():  # a copy, an evaluation
            return forward(*arguments, **keywords)
        return parallel(forward, *arguments, **keywords)

    return run


DATA_PARALLEL = Technique(
    name=_NAME,
    does="has every rank train on its own batch, and averages the gradients",
    precondition="the program trains in one process",
    proof="wrappers and sharded parameters are refused",
    semantics=Semantics.TRAINING,
    place=Place.RANKS,
    reference="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
    apply=_apply,
    start=begin,
    excludes=("optimizer_in_backward", "parameter_offload"),
    needs_ranks=True,
)
