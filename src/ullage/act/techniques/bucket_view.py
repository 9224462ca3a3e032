"""Gradients as views of the buckets in which DistributedDataParallel reduces them over ranks.

Otherwise each gradient exists twice: once in `parameter.grad`, and once in its bucket. DDP takes
this option only in its constructor, which a script calls before it trains. So the constructor is
replaced before the first line of the script.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ullage.act.techniques.technique import Action, Place, Semantics, Technique

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target

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
        BUCKET_VIEW.refuse("no module of it is a DistributedDataParallel")
    if not all(module.gradient_as_bucket_view for module in modules):
        BUCKET_VIEW.refuse(f"DistributedDataParallel was created without {_OPTION}=True; pass it")


BUCKET_VIEW = Technique(
    name="bucket_view",
    does="makes gradients views of the buckets of the program's own DistributedDataParallel",
    precondition="the program wraps its model in DistributedDataParallel",
    proof="the wrapper is searched in the model; torch refuses to detach such a gradient in place",
    semantics=Semantics.SAME,
    place=Place.PROGRAM,
    reference="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
    apply=_apply,
    start=_start,
    excludes=("data_parallel", "shard", "zero_optimizer"),
    needs_ranks=True,
)
