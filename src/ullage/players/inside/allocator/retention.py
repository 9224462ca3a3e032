"""Rows that a recording keeps beside the events: its memory does not grow with the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage.players.inside.allocator.event_hook import EventHook, Ring
from ullage.players.inside.entrances.settings import RowLimits
from ullage.players.inside.part import Part

if TYPE_CHECKING:
    from ullage.players.inside.recorder import Recorder


class Retention(Part):
    """Forgets the rows of events that have left the ring; where there still are more than the
    limits allow, the oldest go, which the record says.
    """

    def __init__(self, limits: RowLimits, hook: EventHook, recorder: Recorder) -> None:
        self.limits = limits
        self._hook = hook
        self._phases = recorder.phases
        self._modules = recorder.modules
        self._claims = recorder.claims
        self._holders = recorder.holders
        self._num_marks_lost = self._num_claims_lost = 0

    def end_step(self, _count: int) -> None:
        """A step has ended."""
        self.note_mark("step")

    def note_mark(self, _kind: str) -> None:
        """Where a limit is reached, a quarter of it is free afterwards."""
        if len(self._phases.marks) > self.limits.num_marks:
            self._phases.keep_marks_from(self._hook.num_lost)
            self._num_marks_lost += self._phases.keep_last_marks(3 * self.limits.num_marks // 4)
        if len(self._claims) > self.limits.num_claims:
            self._keep_claims_from(self._hook.ring())

    def prepare(self) -> None:
        """Keeps nothing but what belongs to the ring."""
        ring = self._hook.kept
        if ring.first:
            self._phases.keep_marks_from(ring.first)
            self._holders.keep_from(ring.first)
            self._claims.keep_from(ring.first, ring.births_by_address())
        if len(self._claims) > self.limits.num_claims:
            self._keep_claims_from(ring)

    def _keep_claims_from(self, ring: Ring) -> None:
        if ring.first:
            self._claims.keep_from(ring.first, ring.births_by_address())
        if len(self._claims) > 3 * self.limits.num_claims // 4:
            self._num_claims_lost += self._claims.keep_newest(3 * self.limits.num_claims // 4)

    def remarks(self) -> list[str]:
        """The remarks for a reader: which rows are not in the record."""
        lines = []
        if self._num_marks_lost:
            lines.append(
                f"the oldest {self._num_marks_lost:,} marks of phases and steps are not in the "
                "record, as there was no room for them; a larger --ring keeps more"
            )
        if self._num_claims_lost:
            lines.append(
                f"the owners of up to {self._num_claims_lost:,} blocks are not in the record, as "
                "there was no room for them; a larger --ring keeps more"
            )
        if self._modules.has_others:
            lines.append(
                f"of more than {self.limits.num_scopes:,} modules the later ones are named "
                '"others"; a larger --ring keeps more names'
            )
        return lines
