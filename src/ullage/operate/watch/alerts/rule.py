"""A rule: what is measured, from which value on it is an incident, and when that is over."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from ullage.ground.protocol.plain import As, Mark, Only, figure
from ullage.ground.units import format_bytes
from ullage.operate.watch.alerts.outlook import Outlook
from ullage.operate.watch.alerts.reading import Measured, Meter, Subject


class Severity(enum.Enum):
    """The importance of an incident."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0 for the least."""
        return list(Severity).index(self)


class Unit(enum.Enum):
    """The unit of a rule's value."""

    SHARE = "share"
    SECONDS = "seconds"
    BYTES = "bytes"
    COUNT = "count"
    DEGREES = "degrees"

    def format(self, value: float) -> str:
        """For people."""
        if math.isinf(value):
            return "never"
        if self is Unit.SHARE:
            return f"{100 * value:.4g} %"
        if self is Unit.BYTES:
            return format_bytes(round(value))
        if self is Unit.SECONDS:
            return f"{value / 60:.3g} min" if value >= 60 else f"{value:.3g} s"
        return f"{value:.4g}{' °C' if self is Unit.DEGREES else ''}"


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to measure.

    Attributes:
        name: as rules name it.
        unit: of its values.
        subjects, measure: of what, and how.
        says: what a value is, for the list of rules.
        is_below: a value below the threshold is an incident; else one above it.
        least_says: what the key `least` means; "" if there is none.
        can_look_back: whether rules have a `window`.
    """

    name: str
    unit: Unit
    subjects: Callable[[Outlook], Iterator[tuple[Subject, Any]]]
    measure: Callable[[Meter, Subject, Any], Measured]
    says: str
    is_below: bool = False
    least_says: str = ""
    can_look_back: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule.

    A value beyond `threshold` for `for_s` seconds raises an incident, one at `clear` or on its
    healthy side for `clear_for_s` seconds clears it.
    """

    name: Annotated[str, As("rule")]
    kind: Annotated[Kind, Only("name")]
    threshold: float
    clear: float
    for_s: Annotated[float, Mark.NO_KEY] = 0.0
    clear_for_s: Annotated[float, Mark.NO_KEY] = 0.0
    severity: Severity = Severity.WARNING
    window_s: Annotated[float, Mark.NO_KEY] = 0.0
    least: Annotated[float, Mark.NO_KEY] = 0.0

    @figure
    def unit(self) -> Unit:
        """The unit of its values."""
        return self.kind.unit

    def meter(self) -> Meter:
        """The meter of the rule."""
        return Meter(self.kind.subjects, self.kind.measure, self.window_s, self.least)

    def is_beyond(self, value: float) -> bool:
        """True if a value is an incident's."""
        return value < self.threshold if self.kind.is_below else value > self.threshold

    def is_calm(self, value: float) -> bool:
        """True if a value is a healthy one."""
        return value >= self.clear if self.kind.is_below else value <= self.clear
