"""Ranks that share out parameters, or only gradients, as PyTorch's FSDP2 and DDP do it.

Each layer of a Stack is a group of its own, what is outside of stacks is the root group, as in
`for layer in model.layers: fully_shard(layer)` and `fully_shard(model)`. The order of what is
allocated is that of torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py: the buffer of one
all-gather lives until the next one has its own, and so does the input of a reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING

from ullage.log.category import Category
from ullage.players.eager.training.eager.kernels import Kernel, Kind, collect, order
from ullage.players.eager.training.eager.tensor import Tensor

if TYPE_CHECKING:
    from ullage.players.eager.training.eager.arena import Arena, Storage
    from ullage.players.eager.training.eager.dtype import DType

_GATHERS, _REDUCES = 1, 2  # streams beside the one on which the model computes


def shard_numel(shape: Sequence[int], num_shards: int) -> int:
    """Elements of the first rank's part.

    Counts: dimension 0 divided, and rounded up. Ignores: ranks behind, whose part may be smaller.
    Error: none. Source: torch 2.15, torch/distributed/fsdp/_fully_shard/_fsdp_param.py.
    """
    return prod(shard_shape(shape, num_shards))


def shard_shape(shape: Sequence[int], num_shards: int) -> tuple[int, ...]:
    """The shape of the first rank's part; a number is a part of its own."""
    return (-(-shape[0] // num_shards), *shape[1:]) if shape else ()


class FullyShard:
    """FSDP2 on one rank.

    Attributes:
        num_shards: ranks that share the parameters out.
        stored: dtype of the shards, of their gradients and of the optimizer's states.
        is_freed: parameters are freed after the forward pass (reshard_after_forward).
        is_offloaded: shards are in host memory, and come to the device when they are gathered.
        gathered: the whole parameters of each group that has them now, by the group.
        buffer: of the last all-gather.
        sent: input of the last reduce-scatter.
        order: groups as their forward pass ended, those whose backward pass is to come.
        apart: how many ranks share out a parameter, by its id, where it is not all.
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
        self.apart: dict[int, int] = {}
        self._among = num_shards
        self._is_backward = False
        self._reduced: set[int] = set()
        self.kept: list[Storage] = []

    @contextmanager
    def shared_by(self, ranks: int) -> Iterator[None]:
        """This number of ranks share the parameters that are made within, in a group of its own."""
        self._among = ranks
        try:
            yield
        finally:
            self._among = self.num_shards

    def shard(self, arena: Arena, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """A parameter, of which a rank keeps its part."""
        nbytes = 0 if self.is_offloaded else shard_numel(shape, self._among) * self.stored.itemsize
        tensor = Tensor(shape, dtype, arena.take(nbytes, Category.PARAMETER, self.stored.name))
        if self._among != self.num_shards:
            self.apart[id(tensor)] = self._among
        return tensor

    def num_ranks(self, tensor: Tensor) -> int:
        """That share out a parameter."""
        return self.apart.get(id(tensor), self.num_shards)

    def gather(self, group: Sequence[Tensor]) -> None:
        """Before a group is used: the all-gather's buffer, then each parameter, whole."""
        if self._key(group) not in self.gathered:
            self._fetch(group)
            self._unpack(group)

    def free(self, group: Sequence[Tensor], since: int = 0, repeats: int = 1) -> None:
        """After a group's forward pass; what a checkpoint makes again is freed after its backward.

        since: where in the order the first of its own groups stands; repeats: how many like it.
        """
        if self._is_backward:
            return
        self.order.append(group)
        if repeats > 1:
            self.order += self.order[since:]
        if self.is_freed:
            self.gathered.pop(self._key(group), None)

    def turn(self) -> None:
        """The backward pass begins: the last group is gathered."""
        self._is_backward = True
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
        """After a group's backward pass: the gradients are scattered, the parameters freed."""
        self.gathered.pop(self._key(group), None)
        self._reduced.add(self._key(group))
        while self.order and self._key(self.order[-1]) in self._reduced:
            self.order.pop()
        trained = [tensor for tensor in group if tensor.grad is not None]
        if not trained:
            return
        self.sent = None
        size = sum(tensor.numel for tensor in trained) * self.stored.itemsize
        self.sent = self.arena.take(size, Category.COMMUNICATION)
        if self.arena.recorder is not None and self.num_ranks(trained[0]) > 1:
            self.arena.recorder.add(Kernel(Kind.JOIN, (size, size)))
            order(self.arena, 0, _REDUCES)
            ranks = self.num_ranks(trained[0])
            collect(self.arena, "reduce-scatter", size, ranks, _REDUCES)
        for one in trained:
            one.grad = None
        own = sum(shard_numel(tensor.shape, self.num_ranks(tensor)) for tensor in trained)
        own *= self.stored.itemsize
        aside = self._take_aside(own, Category.GRADIENT, _REDUCES)
        if not self.is_offloaded:
            self.kept.append(aside)

    def finish(self) -> None:
        """After the backward pass."""
        order(self.arena, _REDUCES, 0)
        self.sent = None
        self.buffer = None
        self.gathered.clear()
        self.order.clear()
        self._reduced.clear()
        self._is_backward = False

    def _fetch(self, group: Sequence[Tensor]) -> None:
        if self.num_ranks(group[0]) == 1:
            self.buffer = None
            return
        parts = []
        if self.is_offloaded:
            sizes = [shard_numel(tensor.shape, self.num_ranks(tensor)) for tensor in group]
            sizes = [size * self.stored.itemsize for size in sizes]
            parts = [self._take_aside(size, Category.PARAMETER, _GATHERS) for size in sizes]
        whole = sum(tensor.nbytes for tensor in group)
        buffer = self._take_aside(whole, Category.COMMUNICATION, _GATHERS)
        parts.clear()
        self.buffer = buffer
        collect(self.arena, "all-gather", whole, self.num_ranks(group[0]), _GATHERS)

    def _take_aside(self, nbytes: int, category: Category, stream: int) -> Storage:
        """Memory on one of FSDP2's own streams."""
        taken = self.arena.take(nbytes, category)
        self.arena.log.streams[taken.index] = stream
        return taken

    def _unpack(self, group: Sequence[Tensor]) -> None:
        take = self.arena.take
        recorder = self.arena.recorder
        if recorder is not None and group and self.num_ranks(group[0]) > 1:
            order(self.arena, _GATHERS, 0)
            whole = sum(tensor.nbytes for tensor in group)
            recorder.add(Kernel(Kind.JOIN, (whole, whole)))
        self.gathered[self._key(group)] = [
            take(tensor.nbytes, Category.PARAMETER) for tensor in group
        ]

    @staticmethod
    def _key(group: Sequence[Tensor]) -> int:
        return id(group[0])
