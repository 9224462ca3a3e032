"""The facts that NCCL's communicators learn from the other ranks: how many share a color, and how
many of their ranks are on this machine.

The phantom is told (csrc/answers/nccl_place.c): of a group that is split from another, right before
it is split; of any other in the name of the network in its configuration, which is free unless the
program chose a network. Machines have LOCAL_WORLD_SIZE ranks each, in the order of their numbers.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from ullage.players.inside import library

_GROUPS = ("ProcessGroupNCCL", "ProcessGroupNCCL2", "ProcessGroupNCCLLazy")


def install(torch: ModuleType) -> None:
    """Tells the phantom of each communicator that PyTorch makes."""
    for group in nccl_groups(torch):
        group.__init__ = _with_place(group.__init__)
    c10d = torch._C._distributed_c10d
    split_group = getattr(c10d.ProcessGroup, "split_group", None)
    if split_group is not None:
        c10d.ProcessGroup.split_group = _with_size(split_group, lambda ranks, *_rest: ranks)
    newer = getattr(c10d, "ProcessGroupNCCL2", None)
    if newer is not None:
        newer.split = _with_size(newer.split, lambda _store, ranks, *_rest: ranks)


def nccl_groups(torch: ModuleType) -> Iterator[Any]:
    """The classes of process groups that use NCCL."""
    for name in _GROUPS:
        group = getattr(torch._C._distributed_c10d, name, None)
        if group is not None:
            yield group


def _with_place(initialise: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(initialise)
    def with_place(
        self: object, store: object, rank: int, size: int, *arguments: Any, **kwargs: Any
    ) -> None:
        options = kwargs.get("options", arguments[0] if arguments else None)
        config = getattr(options, "config", None)
        if config is not None and not _network(config):
            ranks = getattr(options, "global_ranks_in_group", None) or range(size)
            config.net_name = f"ullage: {_num_local(ranks, ranks[rank])} ranks here"
        initialise(self, store, rank, size, *arguments, **kwargs)

    return with_place


def _network(config: Any) -> str:
    """The network that the program chose; empty: none."""
    try:
        name = config.net_name
    except (AttributeError, UnicodeDecodeError):
        return ""
    return "" if name is None or name.startswith("ullage: ") else str(name)


def _with_size(
    split: Callable[..., Any], ranks_of: Callable[..., Sequence[int]]
) -> Callable[..., Any]:
    @functools.wraps(split)
    def with_size(self: object, *arguments: Any, **kwargs: Any) -> Any:
        ranks = kwargs["ranks"] if "ranks" in kwargs else ranks_of(*arguments)
        parents = _ranks_of(self)
        own = int(os.environ.get("RANK", "0"))
        world = [parents[rank] if rank < len(parents) else rank for rank in ranks]
        library.split(len(ranks), _num_local(world, own) if own in world else 0)
        try:
            return split(self, *arguments, **kwargs)
        finally:
            library.split(0, 0)

    return with_size


def _ranks_of(group: Any) -> Sequence[int]:
    """The numbers in the job of a group's ranks; empty: their numbers in the group."""
    options = getattr(group, "options", None)
    return getattr(options, "global_ranks_in_group", None) or ()


def _num_local(ranks: Sequence[int], own: int) -> int:
    """How many of these ranks are on the machine of one; 0: not known."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    if not local.isdecimal() or not int(local):
        return 0
    return sum(rank // int(local) == own // int(local) for rank in ranks)
