"""What a recording keeps beside the events, so that its memory does not grow with the program."""

from __future__ import annotations

from ullage.record.allocator.event_hook import EventHook, Ring
from ullage.record.entrances.settings import RowLimits
from ullage.record.owners.latest_holders import LatestHolders
from ullage.record.owners.modules import Modules
from ullage.record.owners.ownership import Claims
from ullage.record.steps.removable_phases import RemovablePhases


class Retention:
    """Forgets the rows of events that have left the ring; where there still are more than the
    limits allow, the oldest go, which the record says.
    """

    def __init__(
        self,
        limits: RowLimits,
        phases: RemovablePhases,
        modules: Modules,
        claims: Claims,
        holders: LatestHolders,
    ) -> None:
        self.limits = limits
        self._phases = phases
        self._modules = modules
        self._claims = claims
        self._holders = holders
        self._num_marks_lost = self._num_claims_lost = 0

    def apply(self, hook: EventHook) -> None:
        """At a mark: where a limit is reached, a quarter of it is free afterwards."""
        if len(self._phases.marks) > self.limits.num_marks:
            self._phases.keep_marks_from(hook.num_lost)
            self._num_marks_lost += self._phases.keep_last_marks(3 * self.limits.num_marks // 4)
        if len(self._claims) > self.limits.num_claims:
            self._keep_claims_from(hook.ring())

    def keep_from(self, ring: Ring) -> None:
        """When the record is written: nothing but what belongs to the ring."""
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
        """What a reader is to know: which rows are not in the record."""
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
