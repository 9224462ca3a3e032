"""Ranks that share out parameters, or only gradients, as PyTorch's FSDP2 and DDP do it.

Each layer of a Stack is a group of its own, what is outside of stacks is the root group, as in
`for layer in model.layers: fully_shard(layer)` and `fully_shard(model)`. The order of what is
allocated is that of torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py: the buffer of one
all-gather lives until the next one has its own, and so does the input of a reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from ullage.trace.category import Category

if TYPE_CHECKING:
    from ullage.estimate.eager.arena import Arena, Storage
    from ullage.estimate.eager.dtype import DType
    from ullage.estimate.eager.tensor import Tensor

_GATHERS, _REDUCES = 1, 2  # streams beside the one on which the model computes

__all__ = ["FullyShard", "shard_numel"]


def shard_numel(shape: Sequence[int], num_shards: int) -> int:
    """Elements of the first rank's part: dimension 0 is divided, and rounded up."""
    if not shape:
        return 1
    return -(-shape[0] // num_shards) * prod(shape[1:])


class FullyShard:
    """FSDP2 on one rank.

    Attributes:
        num_shards: ranks that share the parameters out.
        stored: dtype of the shards, of their gradients and of the optimizer's states.
        is_freed: parameters are let go after the forward pass (reshard_after_forward).
        is_offloaded: shards are in host memory, and come to the device when they are gathered.
        gathered: the whole parameters of each group that has them now, by the group.
        buffer: of the last all-gather.
        sent: input of the last reduce-scatter.
        order: groups in the order of the forward pass, those whose backward pass is to come.
        kept: gradients of the shards.
    """

    def __init__(
        self,
        arena: Arena,
        num_shards: int,
        stored: DType,
        *,
        is_freed: bool = True,
        is_offloaded: bool = False,
    ) -> None:
        self.arena = arena
        self.num_shards = num_shards
        self.stored = stored
        self.is_freed = is_freed
        self.is_offloaded = is_offloaded
        self.gathered: dict[int, list[Storage]] = {}
        self.buffer: Storage | None = None
        self.sent: Storage | None = None
        self.order: list[Sequence[Tensor]] = []
        self.kept: list[Storage] = []

    def shard_bytes(self, shape: Sequence[int]) -> int:
        """What a rank keeps of a parameter."""
        if self.is_offloaded:
            return 0
        return shard_numel(shape, self.num_shards) * self.stored.itemsize

    def gather(self, group: Sequence[Tensor], repeats: int = 1) -> None:
        """Before a group is used: the all-gather's buffer, then each parameter, whole."""
        self.order += [group] * min(repeats, 2)
        if self._key(group) not in self.gathered:
            self._fetch(group)
            self._unpack(group)

    def free(self, group: Sequence[Tensor]) -> None:
        """After a group's forward pass."""
        if self.is_freed:
            self.gathered.pop(self._key(group), None)

    def turn(self) -> None:
        """The backward pass begins: the last group is gathered."""
        self.buffer = None
        if self.is_freed and self.order:
            self._fetch(self.order[-1])

    def regather(self, group: Sequence[Tensor]) -> None:
        """Before a group's backward pass: its buffer is here; that of the next one is fetched."""
        if self._key(group) in self.gathered:
            return
        self._unpack(group)
        self.buffer = None
        if self.order:  # of passes that went forward before another one's end nothing is known
            self.order.pop()
        if self.order:
            self._fetch(self.order[-1])

    def reduce(self, group: Sequence[Tensor]) -> None:
        """After a group's backward pass: the gradients are scattered, the parameters let go."""
        self.gathered.pop(self._key(group), None)
        while self.order and self.order[-1] is group:
            self.order.pop()
        trained = [one for one in group if one.grad is not None]
        if not trained:
            return
        self.sent = None
        size = sum(one.numel for one in trained) * self.stored.itemsize
        self.sent = self._take_aside(size, Category.COMMUNICATION, _REDUCES)
        for one in trained:
            one.grad = None
        own = sum(shard_numel(one.shape, self.num_shards) for one in trained)
        own *= self.stored.itemsize
        kept = self._take_aside(own, Category.GRADIENT, _REDUCES)
        if not self.is_offloaded:
            self.kept.append(kept)

    def finish(self) -> None:
        """After the backward pass."""
        self.sent = None
        self.buffer = None
        self.gathered.clear()
        self.order.clear()

    def _fetch(self, group: Sequence[Tensor]) -> None:
        whole = sum(one.nbytes for one in group)
        self.buffer = self._take_aside(whole, Category.COMMUNICATION, _GATHERS)

    def _take_aside(self, nbytes: int, category: Category, stream: int) -> Storage:
        """Memory on one of FSDP2's own streams."""
        taken = self.arena.take(nbytes, category)
        self.arena.log.streams[taken.index] = stream
        return taken

    def _unpack(self, group: Sequence[Tensor]) -> None:
        take = self.arena.take
        self.gathered[self._key(group)] = [take(one.nbytes, Category.PARAMETER) for one in group]

    @staticmethod
    def _key(group: Sequence[Tensor]) -> int:
        return id(group[0])
