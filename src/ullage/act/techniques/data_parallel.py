"""Every rank has the whole model and its own batch; gradients are averaged during backward.

torch's DistributedDataParallel does the work, with gradients as views of its buckets. It wraps a
module whose forward calls the forward of the model. The program continues to call its own model,
whose name and state dict keys do not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.act.techniques.means.sharing.rank_groups import (
    begin,
    check_is_eager,
    check_is_whole,
    draw_apart,
    join,
)
from ullage.act.techniques.technique import Action, Place, Semantics, Technique

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target

_NAME = "data_parallel"


def _apply(target: Target, _: Action) -> None:
    check_is_whole(target, _NAME)
    check_is_eager(target, _NAME)
    model = target.module("")
    ranks = join(_NAME, model, target.changes)
    target.wrap_forward("", _averaging(model))
    draw_apart(ranks)


def _averaging(model: Any) -> Any:
    from torch import is_grad_enabled, nn

    class Bare(nn.Module):  # type: ignore[misc]
        """Holds the model for its parameters, and runs its forward without its hooks."""

        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = model  # a name that paths leave out

        def forward(self, forward: Any, *arguments: Any, **keywords: Any) -> Any:
            return forward(*arguments, **keywords)

    # Without views into the buckets there would be a second copy of all gradients.
    parallel = nn.parallel.DistributedDataParallel(Bare(), gradient_as_bucket_view=True)

    def run(forward: Any, *arguments: Any, **keywords: Any) -> Any:
        if forward.__self__ is not model or not is_grad_enabled():  # a copy, an evaluation
            return forward(*arguments, **keywords)
        return parallel(forward, *arguments, **keywords)

    return run


DATA_PARALLEL = Technique(
    name=_NAME,
    does="trains every rank on its own batch, and averages the gradients",
    precondition="the program trains in one process",
    proof="modules that are wrapped for several ranks and sharded parameters are refused",
    semantics=Semantics.TRAINING,
    place=Place.RANKS,
    reference="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
    apply=_apply,
    start=begin,
    excludes=("optimizer_in_backward", "parameter_offload"),
    needs_ranks=True,
)
