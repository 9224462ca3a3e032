"""Gradients as views of the buckets in which DistributedDataParallel sums them over ranks.

Without it each gradient exists twice: by itself, and in its bucket. DDP can be told so only when it
is made, which a script does before it trains; it is made so from the script's first line on.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ullage.techniques.technique import Action, Place, Semantics, Technique

if TYPE_CHECKING:
    from ullage.techniques.applying.target import Target

_OPTION = "gradient_as_bucket_view"


def _start(torch: ModuleType) -> None:
    kind = torch.nn.parallel.DistributedDataParallel
    make = kind.__init__

    @functools.wraps(make)
    def make_with_views(parallel: Any, *arguments: Any, **keywords: Any) -> None:
        make(parallel, *arguments, **{**keywords, _OPTION: True})

    kind.__init__ = make_with_views


def _apply(target: Target, _: Action) -> None:
    from torch.nn.parallel import DistributedDataParallel

    modules = [
        module for module in target.model.modules() if isinstance(module, DistributedDataParallel)
    ]
    if not modules:
        BUCKET_VIEW.refuse("nothing in it is in DistributedDataParallel")
    if not all(module.gradient_as_bucket_view for module in modules):
        BUCKET_VIEW.refuse(f"it was made without; give DistributedDataParallel {_OPTION}=True")


BUCKET_VIEW = Technique(
    name="bucket_view",
    does="has gradients be views of the buckets of a script's own DistributedDataParallel",
    precondition="the program wraps its model in DistributedDataParallel",
    proof="looked for in the model; torch refuses what detaches a gradient in place",
    semantics=Semantics.SAME,
    place=Place.PROGRAM,
    reference="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
    apply=_apply,
    start=_start,
    excludes=("data_parallel", "shard", "zero_optimizer"),
    needs_ranks=True,
)
