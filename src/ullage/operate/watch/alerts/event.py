"""The changes of an incident: it is raised, and later cleared.

event.line()        # one line for people
event.document      # plain values, one line of a log
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from ullage.ground.protocol.plain import As, Mark, document_of, figure
from ullage.operate.watch.alerts.reading import Subject
from ullage.operate.watch.alerts.rule import Rule


class Change(enum.Enum):
    """The change of an incident."""

    RAISED = "raised"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class Event:
    """An incident that has begun or ended.

    Attributes:
        change: which of the two.
        rule: whose.
        subject: of what.
        host: the machine's name.
        time_s: when the rule was sure of it (s since the epoch).
        since_s: when the incident was raised; equal in both of its events.
        value: the rule's value at that moment; None: unknown, as of a process that has ended.
        text: why, with figures.
    """

    SCHEMA: ClassVar[str] = "ullage.alert/1"

    change: Annotated[Change, As("event")]
    rule: Annotated[Rule, Mark.FLAT]
    subject: Annotated[Subject, Mark.FLAT]
    host: str
    time_s: float
    since_s: float
    value: float | None
    text: str

    @figure
    def incident(self) -> str:
        """The same for the two events of one incident, and for no other."""
        subject = self.subject
        parts = (self.host, self.rule.name, subject.gpu, subject.pid, f"{self.since_s:.3f}")
        return "/".join("-" if part is None else str(part) for part in parts)

    def line(self) -> str:
        """One line: time, change, severity, rule, subject, reason."""
        moment = datetime.fromtimestamp(self.time_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        severity = self.rule.severity.value
        return (
            f"{moment} {self.change.value} {severity} {self.rule.name}: "
            f"{self.subject}: {self.text} ({self.figures()})"
        )

    def figures(self) -> str:
        """The value beside the threshold, or for how long the incident lasted."""
        unit = self.rule.kind.unit
        if self.change is Change.CLEARED:
            seconds = self.time_s - self.since_s
            return f"after {seconds / 60:.3g} min" if seconds >= 60 else f"after {seconds:.3g} s"
        side = "below" if self.rule.kind.is_below else "above"
        value = "unknown" if self.value is None else unit.format(self.value)
        return f"{value}; alert {side} {unit.format(self.rule.threshold)}"

    @property
    def document(self) -> dict[str, Any]:
        """The event as plain values, schema `ullage.alert/1`; an endless value is null."""
        return document_of(self)
