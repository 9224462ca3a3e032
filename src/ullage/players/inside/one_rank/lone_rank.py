"""One rank of a job without its peers: what `ullage run --world-size N --rank r` means in the
program.

PyTorch's own process groups do the work. ProcessGroupNCCL is the real one; the phantom answers its
calls to NCCL. What is put in place here is what it would need the other ranks for: the store that
they meet in, NCCL's unique identifiers, and Gloo, which connects every rank with every other. The
rule is that of csrc/answers/nccl.c: every rank held the same values. Where a value cannot be known
by it, that is noted, with its place in the program.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ullage.ground.protocol.run import LoneRank
from ullage.players.inside.one_rank import communicators
from ullage.players.inside.one_rank.mail import Mail
from ullage.players.inside.part import Part
from ullage.players.inside.patches import Patches

Note = Callable[[str, int, str], None]
"""Takes what was not known, its bytes, and what was assumed in its place."""

_NCCL_ID_BYTES = 128
# Communicators of one group that are made one after another: one for each device it is used on.
_NUM_COMMUNICATORS = 64


class LoneRanks(Part):
    """Puts a world of one rank in the place of the other ranks.

    Args:
        torch: the module, imported, with torch.distributed.
        job: the rank that this process plays; None where the others are there.
        note_unknown: called where a value of another rank was needed that cannot be known.
    """

    def __init__(self, torch: ModuleType, job: LoneRank | None, note_unknown: Note) -> None:
        self._torch = torch
        self._job = job
        self._note_unknown = note_unknown
        self._groups: list[list[int]] = []  # the ranks of each process group

    def install(self, _patches: Patches) -> None:
        """Starts, in a torch that has them."""
        torch, job, note = self._torch, self._job, self._note_unknown
        distributed = getattr(torch, "distributed", None)
        if distributed is None or not distributed.is_available():
            return
        communicators.install(torch)
        from ullage.players.inside.one_rank import gloo, objects

        objects.install(Mail(job.mail, job.rank) if job else None, note)
        if job is None:
            return
        _replace_stores(torch, job, note)
        # Every NCCL process group finds the identifiers that other ranks would have made. It gets a
        # store of its own, one in C++: threads of it ask the store until the process ends, when
        # Python is no longer there to answer.
        for group in communicators.nccl_groups(torch):
            group.__init__ = _with_identifiers(torch, group.__init__)
        gloo.install()
        torch.distributed.distributed_c10d._pg_group_ranks = _NotedGroups(self._note_group)

    def _note_group(self, ranks: list[int]) -> None:
        if self._job is not None and not self._groups and len(ranks) > 1:
            others = self._job.world_size - 1
            text = f"values from the {others} other ranks"
            self._note_unknown(text, 0, "every rank held the same")
        self._groups.append(ranks)

    def fields(self) -> dict[str, Any]:
        """The groups that came to be."""
        return {"groups": self._groups}


class _NotedGroups(dict[Any, dict[int, int]]):
    """torch's own table of process groups and their ranks, which tells of new ones."""

    def __init__(self, note: Callable[[list[int]], None]) -> None:
        super().__init__()
        self._note = note

    def __setitem__(self, group: Any, ranks: dict[int, int]) -> None:
        super().__setitem__(group, ranks)
        self._note(list(ranks))


def _replace_stores(torch: ModuleType, job: LoneRank, note: Note) -> None:
    """TCPStore and FileStore become stores without peers."""
    from ullage.players.inside.one_rank.store import LoneStore

    def note_key(key: str) -> None:
        note(f"key {key!r} of the store", 0, "empty, as no other rank is there to write it")

    class TCPStore(LoneStore):
        """A store of no host and no port."""

        def __init__(
            self, host_name: str = "", port: int = 0, *_arguments: object, **_named: object
        ) -> None:
            super().__init__(job.rank, job.world_size, note_key)
            self.host, self.port = host_name, port

    class FileStore(LoneStore):
        def __init__(self, file_name: str = "", *_arguments: object, **_named: object) -> None:
            super().__init__(job.rank, job.world_size, note_key)
            self.path = file_name

    # torch.distributed.rendezvous is a function that hides the module of that name.
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    for module in (torch._C._distributed_c10d, torch.distributed, rendezvous):
        for store in (TCPStore, FileStore):
            setattr(module, store.__name__, store)


def _with_identifiers(torch: ModuleType, initialise: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(initialise)
    def with_identifiers(
        self: object, store: object, rank: int, size: int, *arguments: Any, **kwargs: Any
    ) -> None:
        known = torch.distributed.HashStore()
        options = kwargs.get("options", arguments[0] if arguments else None)
        for key in _identifier_keys(rank, size, getattr(options, "group_name", "")):
            known.set(key, "\0" * _NCCL_ID_BYTES)
        initialise(self, known, rank, size, *arguments, **kwargs)

    return with_identifiers


def _identifier_keys(rank: int, size: int, group_name: str) -> list[str]:
    """The keys that ProcessGroupNCCL reads an identifier from which another rank wrote: those of
    whole groups, of groups with several roots, and of pairs with a lower rank; then those of its
    second version, which torch 2.15 takes.
    """
    whole = [str(number) for number in range(_NUM_COMMUNICATORS)] if rank else []
    roots = [f"UniqueNCCLID:{root}" for root in range(size)]
    pairs = [f"{peer}:{rank}" for peer in range(rank)]
    newer = f"{group_name or 'nccl2'}/nccl_storekey_0"
    return [*whole, *roots, *pairs, newer, *(f"{newer}_{root}" for root in range(size))]
