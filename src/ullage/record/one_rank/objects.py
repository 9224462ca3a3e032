"""Python objects from other ranks.

Gathered objects need nothing here: the collectives below repeat this rank's own. What one rank
broadcasts, scatters or sends to others (the shapes of a pipeline's stages, the name of a run) is
got from that rank, which is played in another process until it has sent it. Where it never does,
the program keeps what it passed in, as if the other rank had held the same, and that is noted.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import distributed
from torch.distributed import distributed_c10d

from ullage.record.one_rank.mail import Mail

Note = Callable[[str, int, str], None]


def install(mail: Mail, note: Note) -> None:
    """Takes over the object collectives in which one rank's objects reach others."""
    exchange = _Exchange(mail, note)
    for function in (
        exchange.broadcast_object_list,
        exchange.scatter_object_list,
        exchange.send_object_list,
        exchange.recv_object_list,
    ):
        name = function.__name__
        original = getattr(distributed_c10d, name, None)
        if original is None:
            continue
        wrapped = functools.wraps(original)(functools.partial(function, original))
        for module in (distributed_c10d, distributed):
            setattr(module, name, wrapped)


class _Exchange:
    def __init__(self, mail: Mail, note: Note) -> None:
        self._mail = mail
        self._note = note
        self._counts: Counter[str] = Counter()

    def broadcast_object_list(
        self,
        original: Callable[..., Any],
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        *arguments: Any,
        group_src: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """The source's objects; the collective itself is done with this rank as its source, so that
        what it allocates is what it would.
        """
        root, own = _global_rank(group, src, group_src), distributed.get_rank()
        if distributed_c10d._rank_not_in_group(group):
            return original(object_list, root, group, *arguments, **kwargs)
        name = self._next(f"broadcast {root} in {_members(group)}")
        if root == own:
            self._mail.send(name, pickle.dumps(object_list))
        else:
            object_list[:] = self._receive(name, root, object_list)
        return original(object_list, own, group, *arguments, **kwargs)

    def scatter_object_list(
        self,
        original: Callable[..., Any],
        output: list[Any],
        inputs: list[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        *,
        group_src: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """The source's objects, of which each rank keeps its own."""
        root, own = _global_rank(group, src, group_src), distributed.get_rank()
        if distributed_c10d._rank_not_in_group(group):
            return original(output, inputs, root, group, **kwargs)
        name = self._next(f"scatter {root} in {_members(group)}")
        if root == own:
            self._mail.send(name, pickle.dumps(inputs))
        else:
            inputs = self._receive(name, root, output * distributed.get_world_size(group))
        return original(output, inputs, own, group, **kwargs)

    def send_object_list(
        self,
        original: Callable[..., Any],
        object_list: list[Any],
        dst: int | None = None,
        group: Any = None,
        *arguments: Any,
        group_dst: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Sends, and leaves the objects for the other."""
        peer = _global_rank(group, dst, group_dst)
        name = self._next(f"from {distributed.get_rank()} to {peer} in {_members(group)}")
        self._mail.send(name, pickle.dumps(object_list))
        return original(object_list, peer, group, *arguments, **kwargs)

    def recv_object_list(
        self,
        original: Callable[..., Any],
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        *arguments: Any,
        group_src: int | None = None,
        **kwargs: Any,
    ) -> int:
        """What the other has sent; the program does not learn how."""
        del original, arguments, kwargs  # it would read sizes that no one has sent
        sender = _global_rank(group, src, group_src)
        name = self._next(f"from {sender} to {distributed.get_rank()} in {_members(group)}")
        object_list[:] = self._receive(name, sender, object_list)
        return sender

    def _next(self, kind: str) -> str:
        """The name of the next exchange of a kind, which is the same in both ranks."""
        self._counts[kind] += 1
        return f"{kind}, {self._counts[kind]}"

    def _receive(self, name: str, sender: int, instead: list[Any]) -> list[Any]:
        payload = self._mail.receive(name, sender)
        if payload is None:
            self._note(f"objects of rank {sender}, which never sent them", 0, "this rank's own")
            return instead
        received: list[Any] = pickle.loads(payload)  # as the program itself would
        return received


def _global_rank(group: Any, rank: int | None, group_rank: int | None) -> int:
    if group_rank is not None:
        known = group or distributed.group.WORLD
        return int(distributed.get_global_rank(known, group_rank))
    return rank or 0


def _members(group: Any) -> str:
    """A short name for a group that all of its ranks share, and no other group has."""
    ranks = distributed.get_process_group_ranks(group or distributed.group.WORLD)
    digest = hashlib.sha256(repr(ranks).encode()).hexdigest()
    return f"{len(ranks)} from {ranks[0]} to {ranks[-1]}, {digest[:8]}"
