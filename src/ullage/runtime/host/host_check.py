"""Checks that the host has memory for what a rung moves to it; else the kernel ends the process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ullage.runtime.failure import say
from ullage.runtime.host.host_memory import Room, find_room
from ullage.techniques.plan import Plan
from ullage.units import format_bytes

_OFFLOADS: Final = "offload_activations"
# PyTorch rounds pinned memory up to powers of two.
_ROUNDED: Final = 2


class HostCheck:
    """Which rungs the host has memory for.

    Args:
        plans: of the rungs from 1 on.
        find: the memory that the process can still take.
        find_step_bytes: the most that a step has had on the GPU, for plans without a run.

    Attributes:
        skipped: the rungs that were left out when they were asked for last.
        is_on: whether any is left out. Several ranks must choose the same, so they leave out none.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        find: Callable[[], Room] = find_room,
        find_step_bytes: Callable[[], int] | None = None,
    ) -> None:
        self.skipped: set[int] = set()
        self.is_on = True
        self._plans = plans
        self._find = find
        self._find_step_bytes = find_step_bytes or _step_bytes
        self._pinned: set[int] = set()

    def next_below(self, rung: int) -> int:
        """The next rung that the host has memory for; one after the last where there is none."""
        for number in range(rung + 1, len(self._plans) + 1):
            reason = self._why_not(number) if self.is_on else None
            if reason is None:
                self.skipped.discard(number)
                return number
            if number not in self.skipped:
                say(reason)
            self.skipped.add(number)
        return len(self._plans) + 1

    def next_above(self, rung: int) -> int:
        """The nearest rung before it that was not left out."""
        return next(number for number in range(rung - 1, -1, -1) if number not in self.skipped)

    def _why_not(self, rung: int) -> str | None:
        plan = self._plans[rung - 1]
        if all(action.technique != _OFFLOADS for action in plan.actions) or rung in self._pinned:
            return None
        foreseen = 0 if plan.foreseen is None else plan.foreseen.host_bytes
        needed = foreseen or _ROUNDED * self._find_step_bytes()
        room = self._find()
        if needed > room.free_bytes:
            basis = "as on the phantom" if foreseen else "at most, as a step had on the GPU"
            return (
                f"left out rung {rung} ({plan.summary}): it takes {format_bytes(needed)} of the "
                f"host's memory ({basis}), and {room.text}"
            )
        # PyTorch keeps what was pinned once.
        self._pinned.add(rung)
        return None


def _step_bytes() -> int:
    """The most that was allocated on the GPU beyond what is there between steps."""
    import torch

    if not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated())
