"""DistributedDataParallel around a guarded model: a rank that runs out of memory goes on by itself.

The guarded calls are those of the model within DDP's forward. Such a call has no collectives, so a
rank can run it again while the others wait for it in DDP's reduction. A backward is not begun anew
but gone on with: the parameters whose gradients were summed have told DDP so, which may have sent
them, and the second backward is run for the others alone. The other ranks see a slow rank, and
nothing is taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

import torch.distributed as dist
from torch.nn.parallel import distributed

from ullage.errors import GuardError
from ullage.techniques.applying.changes import Changes

_NOT_REDUCED = (
    "DistributedDataParallel itself ran out of memory while it reduced gradients, which cannot be "
    "gone on with; the other ranks wait for this one until they are ended"
)


class Replica:
    """The copy of a model on this rank.

    Args:
        wrapper: the DistributedDataParallel.

    Attributes:
        rank: of this process.
        joins_late: whether DDP looks at the graph of a call for parameters that it has not used,
            so that the joint (joint.py) comes after it.
        summed: where gradients are views of DDP's buckets, which have one version counter for all,
            the parameters whose gradients the present backward has summed; else None.
    """

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper
        self.rank: int = dist.get_rank()
        self.joins_late: bool = wrapper.find_unused_parameters
        self.summed: list[Any] | None = [] if wrapper.gradient_as_bucket_view else None
        self._num_groups = 0
        self._backends: list[Any] = []

    def watch_sums(self, changes: Changes) -> None:
        """Notes each sum where version counters do not say."""
        if self.summed is not None:
            for parameter in self._wrapper.parameters():
                if parameter.requires_grad:
                    note = self.summed.append  # of C, without a frame
                    changes.hook(parameter.register_post_accumulate_grad_hook(note))

    def begin_backward(self) -> None:
        """Before the backward of the model's part."""
        if self.summed is not None:
            self.summed.clear()

    @property
    def is_calling(self) -> bool:
        """Whether DDP's forward is under way."""
        return self._wrapper._get_active_ddp_module() is self._wrapper

    def count_collectives(self) -> int:
        """How many collectives this rank has begun, of all process groups."""
        groups = dist.distributed_c10d._world.pg_map
        if len(groups) != self._num_groups:
            self._num_groups = len(groups)
            pairs = [(group, kind) for group in groups for kind in group._device_types]
            backends = [group._get_backend(kind) for group, kind in pairs]
            self._backends = [*{id(each): each for each in backends}.values()]
        return sum(each._get_sequence_number_for_group() for each in self._backends)

    def sink(self, outputs: Sequence[Any]) -> list[Any]:
        """Outputs of a call that was run again, as DDP gives them to the script: behind a function
        that reaches all of them, also those of which the loss uses none.
        """
        if not self.joins_late or not outputs:
            return [*outputs]
        return [*distributed._DDPSink.apply(ref(self._wrapper), *outputs)]

    def check_reduced(self) -> None:
        """After a backward that was gone on with: raises GuardError if DDP has not reduced what it
        has begun to.
        """
        try:
            self._wrapper.reducer._check_reducer_finalized()
        except RuntimeError:
            raise GuardError(_NOT_REDUCED) from None
