"""Python objects between ranks.

NCCL's stand-in gives every rank its own values back, so objects go beside it. Where the other ranks
are there, through the store of the process group; Gloo's collectives are real, and are left alone.
Of a rank that is played without its peers, gathered objects are this rank's own; what one rank
broadcasts, scatters or sends to others (the shapes of a pipeline's stages, the name of a run) is
got from that rank, which is played in another process until it has sent it. Where it never does,
the program keeps what it passed in, as if the other rank had held the same, and that is noted.

The collective itself is done, too, with this rank as the source of the largest object, so that it
allocates what it would; nobody reads what has arrived.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed
from torch.distributed import distributed_c10d

from ullage.players.inside.one_rank.mail import Mail

Note = Callable[[str, int, str], None]
Bound = dict[str, Any]


def install(mail: Mail | None, note: Note) -> None:
    """Takes over the collectives of objects.

    Args:
        mail: to ranks that are played in other processes; None: the other ranks are there.
        note: called where an object was needed that never came.
    """
    exchange = _Exchange(mail, note)
    for function in (
        exchange.all_gather_object,
        exchange.gather_object,
        exchange.broadcast_object_list,
        exchange.scatter_object_list,
        exchange.send_object_list,
        exchange.recv_object_list,
    ):
        original = getattr(distributed_c10d, function.__name__)
        taken = functools.wraps(original)(functools.partial(exchange.take, function, original))
        for module in (distributed_c10d, distributed):
            setattr(module, function.__name__, taken)
    for convert in (exchange._object_to_tensor, exchange._tensor_to_object):
        original = getattr(distributed_c10d, convert.__name__)
        setattr(distributed_c10d, convert.__name__, functools.partial(convert, original))


class _Carried(threading.local):
    """The object that a collective takes in place of the program's; it reads nothing."""

    payload: bytes | None = None
    is_unread = False


class _Exchange:
    def __init__(self, mail: Mail | None, note: Note) -> None:
        self._mail = mail
        self._note = note
        self._counts: Counter[str] = Counter()
        self._carried = _Carried()

    def take(
        self,
        function: Callable[[Callable[..., Any], Bound, Any], Any],
        original: Callable[..., Any],
        *arguments: Any,
        **kwargs: Any,
    ) -> Any:
        """Calls what takes the original's place; the original for groups that exchange values."""
        bound = inspect.signature(original).bind(*arguments, **kwargs).arguments
        group = bound.get("group") or distributed.group.WORLD
        if group is None or distributed_c10d._rank_not_in_group(group):
            return original(*arguments, **kwargs)
        device = str(bound.get("device") or distributed_c10d._get_object_coll_device(group))
        if self._mail is None and device.startswith("cpu"):
            return original(*arguments, **kwargs)
        return function(original, bound, group)

    def all_gather_object(self, original: Callable[..., Any], bound: Bound, group: Any) -> None:
        """The objects of all ranks, in their order."""
        payloads = self._collect(original, bound, group)
        bound["object_list"][: len(payloads)] = map(pickle.loads, payloads)

    def gather_object(self, original: Callable[..., Any], bound: Bound, group: Any) -> None:
        """The same, at one rank; it has the list."""
        payloads = self._collect(original, bound, group)
        if bound.get("object_gather_list"):
            bound["object_gather_list"][:] = map(pickle.loads, payloads)

    def broadcast_object_list(self, original: Callable[..., Any], bound: Bound, group: Any) -> None:
        objects, root = bound["object_list"], _peer(bound, group, "src")
        (payload,) = self._from_root("broadcast", root, [objects], group)
        if root != distributed.get_rank():
            objects[:] = pickle.loads(payload)  # as the program itself would
        original(**_from_here(bound))

    def scatter_object_list(self, original: Callable[..., Any], bound: Bound, group: Any) -> None:
        """The source's objects, of which each rank keeps its own."""
        output, inputs = bound["scatter_object_output_list"], "scatter_object_input_list"
        root = _peer(bound, group, "src")
        own: Any = bound.get(inputs) if root == distributed.get_rank() else output * group.size()
        if own is None:
            original(**bound)  # raises the error
        payloads = self._from_root("scatter", root, own, group)
        with self._carrying(max(payloads, key=len)):
            original(**_from_here(bound | {inputs: [None] * len(payloads)}))
        output[0] = pickle.loads(payloads[distributed.get_rank(group)])

    def send_object_list(self, original: Callable[..., Any], bound: Bound, group: Any) -> None:
        """Sends, and leaves the objects for the other."""
        name = f"from {distributed.get_rank()} to {_peer(bound, group, 'dst')}"
        self._send(self._next(name, group), pickle.dumps(bound["object_list"]), group, 1)
        original(**bound)

    def recv_object_list(self, _original: Callable[..., Any], bound: Bound, group: Any) -> int:
        """Receives what the other has sent. The original would read sizes that no one has sent."""
        sender = _peer(bound, group, "src")
        name = f"from {sender} to {distributed.get_rank()}"
        payload = self._receive(self._next(name, group), sender, group, 1)
        if payload is not None:
            bound["object_list"][:] = pickle.loads(payload)
        return sender

    def _from_root(self, kind: str, root: int, own: list[Any], group: Any) -> list[bytes]:
        """The bytes of the root's objects, which it sends to all others; else of the own ones."""
        name = self._next(f"{kind} {root}", group)
        num_readers = distributed.get_world_size(group) - 1
        if root != distributed.get_rank():
            payload = self._receive(name, root, group, num_readers)
            if payload is not None:
                return list(pickle.loads(payload))
        payloads = [*map(pickle.dumps, own)]
        if root == distributed.get_rank():
            self._send(name, pickle.dumps(payloads), group, num_readers)
        return payloads

    def _collect(self, original: Callable[..., Any], bound: Bound, group: Any) -> list[bytes]:
        payloads = self._gather(bound["obj"], group)
        with self._carrying(max(payloads, key=len)):
            original(**bound)
        return payloads

    def _gather(self, own: Any, group: Any) -> list[bytes]:
        """The bytes of each rank's object; of ranks that are not there, the own ones."""
        ranks = distributed.get_process_group_ranks(group)
        payloads = dict.fromkeys(ranks, sent := pickle.dumps(own))
        others = [rank for rank in ranks if rank != distributed.get_rank()]
        if self._mail is not None or not others:
            return list(payloads.values())
        name = self._next("gather", group)
        self._send(f"{name} {distributed.get_rank()}", sent, group, len(others))
        for rank in others:
            payloads[rank] = self._receive(f"{name} {rank}", rank, group, len(others)) or sent
        return list(payloads.values())

    # ---- The way -----------------------------------------------------------------------------

    def _next(self, kind: str, group: Any) -> str:
        """The name of the next exchange of a kind, which is the same in all ranks."""
        kind = f"{kind} in {_members(group)}"
        self._counts[kind] += 1
        return f"{kind}, {self._counts[kind]}"

    def _send(self, name: str, payload: bytes, group: Any, num_readers: int) -> None:
        if self._mail is not None:
            self._mail.send(name, payload)
        elif num_readers:
            distributed_c10d._world.pg_map[group][1].set(name, payload)

    def _receive(self, name: str, sender: int, group: Any, num_readers: int) -> bytes | None:
        if self._mail is not None:
            payload = self._mail.receive(name, sender)
            if payload is None:
                self._note(f"objects of rank {sender}, which never sent them", 0, "this rank's own")
            return payload
        _, store = distributed_c10d._world.pg_map[group]  # where its ranks have met
        received: bytes = store.get(name)
        if store.add(f"{name}, read", 1) == num_readers:  # else the store grows with each step
            store.delete_key(name)
            store.delete_key(f"{name}, read")
        return received

    # ---- The collective itself ---------------------------------------------------------------

    @contextmanager
    def _carrying(self, payload: bytes | None) -> Iterator[None]:
        self._carried.payload, self._carried.is_unread = payload, True
        try:
            yield
        finally:
            self._carried.payload, self._carried.is_unread = None, False

    def _object_to_tensor(self, original: Callable[..., Any], *arguments: Any) -> Any:
        payload, device = self._carried.payload, arguments[1]
        if payload is None:
            return original(*arguments)
        values, size = bytearray(payload), torch.tensor([len(payload)])
        return torch.frombuffer(values, dtype=torch.uint8).to(device), size.to(device)

    def _tensor_to_object(self, original: Callable[..., Any], *arguments: Any) -> Any:
        return None if self._carried.is_unread else original(*arguments)


def _peer(bound: Bound, group: Any, role: str) -> int:
    group_rank = bound.get(f"group_{role}")
    if group_rank is not None:
        return int(distributed.get_global_rank(group, group_rank))
    return bound.get(role) or 0


def _from_here(bound: Bound) -> Bound:
    """The arguments with this rank as the source."""
    return bound | {"src": distributed.get_rank(), "group_src": None}


def _members(group: Any) -> str:
    """A short name for a group that all of its ranks share, and no other group has."""
    ranks = distributed.get_process_group_ranks(group)
    digest = hashlib.sha256(repr(ranks).encode()).hexdigest()
    return f"{len(ranks)} from {ranks[0]} to {ranks[-1]}, {digest[:8]}"
