"""Votes of ranks, and the word of a failure, on the store that the default process group has.

A side channel: nothing here is a collective of NCCL or gloo, so it works while these wait. Between
two failures lies a round. In a round the ranks vote; a vote is one addition to a counter, and the
last rank publishes the result. A rank that fails publishes that as the result of its next vote, and
wakes a thread of each rank, which says how far that rank has got in its collectives, even while
the rank itself waits in one.

    agreement.vote("end")                  # True, or raises PeerOutOfMemory
    agreement.fail("memory", "20 MiB asked for")
    meeting = agreement.meet()             # who failed, and how far each rank has got
    agreement.go_on()                      # the next round

Every wait ends after `deadline_s` with a GuardError.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch.distributed import DistError

from ullage.ground.errors import GuardError

KINDS = ("begin", "forward", "gradients", "optimizer", "end")
_PLACES = {
    "begin": "before the step is run again",
    "forward": "before a forward in which DistributedDataParallel orders its buckets",
    "gradients": "before gradients are reduced",
    "optimizer": "before the optimizer's step",
    "end": "at the end of the step",
}
_BITS = 20
_MASK = (1 << _BITS) - 1
_FAILED, _SPLIT, _YES, _NO = b"failed", b"split", b"yes", b"no"
_POLL = timedelta(hours=1)


class PeerOutOfMemory(torch.OutOfMemoryError):  # type: ignore[misc]  # torch has no types here
    """Another rank has run out of memory; the step of this one ends too."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """The ranks' common knowledge after a failure.

    Attributes:
        rank: that failed first.
        kind: "memory", or "refused" if it cannot go on.
        text: what it said.
        counts: by group, the collectives that the foremost rank has entered.
    """

    rank: int
    kind: str
    text: str
    counts: Mapping[str, int]


class Progress(Protocol):
    """How far this rank has got in its collectives."""

    def freeze(self) -> tuple[int, Mapping[str, int]]:
        """From now on no collective is entered; the number of the step, and how many collectives
        of it were, by group.
        """

    def describe(self, group: str, first: int) -> list[Any]:
        """The collectives of a group that were entered, from one on."""


class Agreement:
    """The votes of one rank.

    Args:
        store: of the default process group; it is cloned.
        prefix: of its keys; the same on all ranks, and of no other guard.
        rank, world_size: of the default process group.
        deadline_s: how long a wait may last.
        progress: of this rank.
    """

    def __init__(
        self, store: Any, prefix: str, rank: int, world_size: int, *, deadline_s: float,
        progress: Progress,
    ) -> None:  # fmt: skip
        self._prefix, self._rank, self._world_size = prefix, rank, world_size
        self._deadline_s = deadline_s
        self._progress = progress
        self._store = self._open(store)
        self._watched_store = self._open(store)
        self._round = 0
        self._number = 0
        self._is_closed = False
        self._has_met, self._may_watch = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._watcher = threading.Thread(target=self._watch, name="ullage-guard", daemon=True)
        self._watcher.start()

    def _open(self, store: Any) -> Any:
        clone = store.clone()
        clone.set_timeout(timedelta(seconds=self._deadline_s))
        return clone

    def vote(self, kind: str, *, is_yes: bool = True) -> bool:
        """Votes; true if all ranks have come here, and said yes.

        Raises:
            PeerOutOfMemory: one of them has failed.
            GuardError: not all came in time, or to the same place.
        """
        self._number += 1
        votes, result = self._key("votes", self._number), self._key("result", self._number)
        amount = 1 + (is_yes << _BITS) + (KINDS.index(kind) << 2 * _BITS)
        total = self._ask(lambda: self._store.add(votes, amount))
        if total & _MASK == self._world_size:
            answer = self._publish(total, kind, votes, result)
        else:
            answer = self._ask(
                lambda: self._store.get(result), lambda: self._explain_absence(kind, votes)
            )
        if answer == _FAILED:
            raise PeerOutOfMemory("another rank ran out of memory")
        if answer == _SPLIT:
            raise GuardError(
                f"a rank is {_PLACES[kind]} while another is elsewhere; all ranks must run the "
                "same steps, and the optimizer in the same of them"
            )
        return bool(answer == _YES)

    def _publish(self, total: int, kind: str, votes: str, result: str) -> bytes:
        """Publishes the last rank's count of their votes. Keys that nobody reads again go."""
        is_same = total >> 2 * _BITS == KINDS.index(kind) * self._world_size
        is_yes = total >> _BITS & _MASK == self._world_size
        answer = _SPLIT if not is_same else _YES if is_yes else _NO

        def publish() -> bytes:
            current: bytes = self._store.compare_set(result, "", answer.decode())
            self._store.delete_key(votes)
            self._store.delete_key(self._key("result", self._number - 1))
            return current

        return bytes(self._ask(publish))

    def _explain_absence(self, kind: str, votes: str) -> str:
        with suppress(DistError):
            count = self._store.add(votes, 0) & _MASK
            return f"{count} of {self._world_size} ranks came to the vote {_PLACES[kind]}"
        return f"the vote {_PLACES[kind]} has no result"

    def fail(self, kind: str, text: str) -> None:
        """Says that this rank has failed; of several at once the first is heard."""
        record = json.dumps({"rank": self._rank, "kind": kind, "text": text})

        def publish() -> None:
            first = self._store.compare_set(self._key("failure"), "", record)
            if first.decode() != record:
                return
            self._store.compare_set(self._key("result", self._number + 1), "", _FAILED.decode())
            for rank in range(self._world_size):
                self._store.set(self._key("wake", rank), "failure")

        self._ask(publish)

    def meet(self) -> Meeting:
        """After a failure on any rank: what all ranks know then."""
        if not self._has_met.wait(self._deadline_s):
            raise GuardError(self._late("no word of the rank that failed"))
        if self._error is not None:
            raise GuardError(str(self._error))
        record = json.loads(self._ask(lambda: self._store.get(self._key("failure"))))
        states = self._read_states(self._store)
        counts: dict[str, int] = {}
        for state in states:
            for group, count in state.items():
                counts[group] = max(count, counts.get(group, 0))
        return Meeting(record["rank"], record["kind"], record["text"], counts)

    def read_log(self, group: str) -> tuple[int, list[Any]]:
        """From which collective on the foremost rank of a group describes them, and these."""
        text = self._ask(
            lambda: self._store.get(self._key("log", group)),
            lambda: f"no rank says what collectives of {group!r} are missing",
        )
        first, log = json.loads(text)
        return first, log

    def go_on(self) -> None:
        """Begins the next round; when all ranks do."""
        self._round += 1
        self._number = 0
        self._has_met.clear()
        self._may_watch.set()

    def close(self) -> None:
        """Ends the thread."""
        self._is_closed = True
        with suppress(DistError, GuardError):
            self._store.set(self._key("wake", self._rank), "close")
        self._may_watch.set()
        self._watcher.join(1)

    def _watch(self) -> None:
        """Waits for a failure, in a thread."""
        while not self._is_closed:
            try:
                self._watched_store.wait([self._key("wake", self._rank)], _POLL)
            except torch.distributed.DistStoreError:
                continue  # nothing has failed for a while
            except Exception as error:
                self._error = error
                self._progress.freeze()
                self._has_met.set()
                return
            if not self._must_answer():
                return
            self._may_watch.clear()
            try:
                self._answer()
            except Exception as error:
                self._error = error
            self._has_met.set()
            self._may_watch.wait()

    def _must_answer(self) -> bool:
        return not self._is_closed

    def _answer(self) -> None:
        """Says how far this rank has got; if no rank is before it, also by what."""
        store = self._watched_store
        store.set(self._key("state", self._rank), json.dumps(self._progress.freeze()))
        states = self._read_states(store)
        for group, count in states[self._rank].items():
            # A rank that has not used the group yet may be in it.
            others = [state.get(group, 0) for state in states]
            first = min(others)
            if others.index(max(others)) == self._rank and first < count:
                log = json.dumps([first, self._progress.describe(group, first)])
                store.set(self._key("log", group), log)

    def _read_states(self, store: Any) -> list[dict[str, int]]:
        states: list[tuple[int, dict[str, int]]] = []
        for rank in range(self._world_size):
            text = self._ask(
                lambda: store.get(self._key("state", rank)),  # noqa: B023  # called at once
                lambda: f"rank {rank} does not answer",  # noqa: B023
            )
            states.append(json.loads(text))
        # A rank that is not in the newest step has all of the one before behind it.
        newest = max(step for step, _ in states)
        return [counts if step == newest else {} for step, counts in states]

    def _key(self, *parts: Any) -> str:
        return "/".join(map(str, (self._prefix, self._round, *parts)))

    def _late(self, text: str) -> str:
        return f"{text} within {self._deadline_s:g} s (deadline_s)"

    def _ask(self, call: Callable[[], Any], explain: Callable[[], str] | None = None) -> Any:
        try:
            return call()
        except torch.distributed.DistStoreError as error:
            text = "the store has no answer" if explain is None else explain()
            raise GuardError(self._late(text)) from error
        except DistError as error:
            raise GuardError(f"the store of the ranks is gone: {error}") from error
