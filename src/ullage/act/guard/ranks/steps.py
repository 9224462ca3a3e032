"""The common work of a training's ranks in each step, and after one of them has failed.

ranks.begin()                  # the step begins: its collectives are counted
...                            # an error elsewhere ends the next collective by PeerOutOfMemory
ranks.end(is_calm=False)       # all ranks are through
failure = ranks.take(error)    # or: this rank has failed, or ends because another has
ranks.meet(...)                # nobody waits in a collective any more
ranks.begin_again()            # all ranks are as before the step
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from ullage.act.guard.failure import Failure, is_out_of_memory, take_failure
from ullage.act.guard.ranks.agreement import Agreement, Meeting, PeerOutOfMemory
from ullage.act.guard.ranks.collectives import Collectives
from ullage.act.guard.ranks.wrappers import Wrappers
from ullage.ground.errors import GuardError

_DISAGREED = "the ranks no longer agree on their steps, as one of them has ended with an error"
_numbers = itertools.count(1)


class OneRank:
    """A training of one process.

    Attributes:
        text: what is said at the start.
        has_failed: whether this rank has run out of memory in the present step.
        shares_gradients: whether gradients lie in memory that collectives change.
        adds_to_gradients: whether the step adds to gradients of earlier micro-batches, of which
            there is no copy; set after `begin`.
        unreduced: tensors with gradients of earlier micro-batches that are this rank's alone.
    """

    text = ""
    has_failed = True
    shares_gradients = False
    adds_to_gradients = False
    unreduced: Sequence[Any] = ()

    def begin(self) -> None:
        """Before a step."""

    def vote_on_optimizer(self) -> None:
        """Before the optimizer's step."""

    def end(self, *, is_calm: bool) -> bool:
        """After a step: whether all ranks are calm."""
        return is_calm

    def take(self, error: Exception) -> Failure:
        """Describes an error of a step, and releases what it holds; others are raised again."""
        if not is_out_of_memory(torch, error):
            raise error
        return take_failure(error)

    def meet(self, failure: Failure, parameters: Sequence[Any]) -> Failure:
        """After an error: the one that all ranks tell."""
        return failure

    def check_gradients(self) -> None:
        """Raises GuardError if sums of earlier micro-batches are gone."""

    def begin_again(self) -> None:
        """Before a step is run again."""

    def agree_to_give_up(self) -> None:
        """All ranks end the step with an error."""

    def refuse(self, error: BaseException) -> None:
        """Says that this rank cannot go on."""

    def close(self) -> None:
        """Leaves nothing behind."""


class Ranks(OneRank):
    """Several processes, of which this is one; all of the default process group.

    Args:
        model: the `nn.Module`.
        deadline_s: how long a rank waits for another.
    """

    def __init__(self, model: Any, deadline_s: float) -> None:
        self._wrappers = Wrappers(model)
        self._deadline_s = deadline_s
        self._collectives = Collectives()
        self._collectives.on_collective = self._before_collective
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        self._agreement = Agreement(
            dist.distributed_c10d._get_default_store(), f"ullage/guard/{next(_numbers)}",
            self._rank, self._world_size,
            deadline_s=deadline_s, progress=self._collectives,
        )  # fmt: skip
        self._collectives.attach()
        self._handles = self._wrappers.on_call(self._before_forward)
        self._is_within = self._is_agreed = self._is_over = False
        self._had_backward = False
        self.shares_gradients = self._wrappers.shares_gradients
        self._voted_in: int | None = None

    @property
    def text(self) -> str:  # type: ignore[override]
        """The sentence at the start."""
        return (
            f"rank {self._rank} of {self._world_size}: all ranks run a step again when one of them "
            f"runs out of memory; none waits longer than {self._deadline_s:g} s for another"
        )

    def begin(self) -> None:
        """Before a step."""
        if self._is_over:
            raise GuardError(_DISAGREED)
        self._voted_in = None
        self._had_backward = False
        self._wrappers.order()
        self.unreduced = self._wrappers.take()
        self.has_failed = False
        self._is_within = True
        self._collectives.begin()

    def _before_forward(self) -> None:
        """A second forward in a step may order buckets."""
        if self._is_within and self._had_backward and self._wrappers.has_unordered:
            self._agreement.vote("forward")
            self._collectives.pause()
            self._wrappers.order()
            self._collectives.go_on()

    def _before_collective(self) -> None:
        """Within a backward that adds to gradients of earlier micro-batches, DDP may write sums to
        them only if all ranks get there. Its own callback at the end does so; this comes first.
        """
        graph = torch._C._current_graph_task_id()
        if graph == -1:
            return
        self._had_backward = True
        if self.adds_to_gradients and graph != self._voted_in:
            self._voted_in = graph
            torch.autograd.Variable._execution_engine.queue_callback(self._vote_on_gradients)

    def _vote_on_gradients(self) -> None:
        self._agreement.vote("gradients")

    def vote_on_optimizer(self) -> None:
        """Before the optimizer's step: from there on no step is run again."""
        if self._is_within:
            self._agreement.vote("optimizer")

    def end(self, *, is_calm: bool) -> bool:
        """After a step: whether all ranks are calm."""
        is_calm = self._agreement.vote("end", is_yes=is_calm)
        self._collectives.clear()
        self._is_within = False
        return is_calm

    def take(self, error: Exception) -> Failure:
        """Describes an error of a step, and tells the other ranks. What another rank's zeros have
        done to this one counts as the other's error.
        """
        is_own = is_out_of_memory(torch, error)
        if not is_own and (isinstance(error, GuardError) or not self._collectives.is_frozen):
            raise error
        failure = take_failure(error)
        if is_own and not isinstance(error, PeerOutOfMemory):
            self.has_failed = True
            self._agreement.fail("memory", failure.text)
        return failure

    def meet(self, failure: Failure, parameters: Sequence[Any]) -> Failure:
        """Joins what other ranks have begun, and makes the wrappers ready.

        Raises:
            GuardError: a rank cannot go on, or does not answer.
        """
        meeting = self._agreement.meet()
        self._join(meeting)
        if meeting.kind == "refused":
            self._is_over = True
            raise GuardError(f"rank {meeting.rank} cannot go on: {meeting.text}")
        self._wrappers.reset(parameters)
        self._collectives.clear()
        self._collectives.thaw()
        self._agreement.go_on()
        if meeting.rank == self._rank:
            return failure
        text = f"rank {meeting.rank}: {meeting.text}"
        return Failure(text, f"{text}; {failure.message}", failure.codes, failure.error)

    def _join(self, meeting: Meeting) -> None:
        missing = self._collectives.count_missing(meeting.counts)
        self._collectives.join(missing, self._agreement.read_log, self._deadline_s)

    def check_gradients(self) -> None:
        """Raises GuardError if sums of earlier micro-batches are gone."""
        self._wrappers.check_sums()

    def begin_again(self) -> None:
        """Before a step is run again: all ranks are as before it."""
        self._agreement.vote("begin")
        self._voted_in = None
        self._had_backward = False
        self._collectives.begin()

    def agree_to_give_up(self) -> None:
        """All ranks end the step with an error, and may begin another."""
        self._is_within = False
        self._is_agreed = True

    def refuse(self, error: BaseException) -> None:
        """Says that this rank cannot go on, and lets others out of the collectives they wait in."""
        if self._is_agreed or self._is_over:
            self._is_agreed = False
            return
        self._is_over = True
        self._is_within = False
        with suppress(Exception):
            text = str(error) if isinstance(error, GuardError) else repr(error)
            self._agreement.fail("refused", text)
            if isinstance(error, Exception):
                self._join(self._agreement.meet())
        self._collectives.clear()

    def close(self) -> None:
        """Leaves nothing behind."""
        for handle in self._handles:
            handle.remove()
        self._collectives.detach()
        self._agreement.close()


def open_ranks(model: Any, deadline_s: float) -> OneRank:
    """The ranks of a training.

    Raises:
        SpecError: DDP or FSDP2 in this model, or of this torch, cannot be made ready again.
    """
    is_several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return Ranks(model, deadline_s) if is_several else OneRank()
