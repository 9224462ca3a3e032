"""The text of alerts: a line for each event, what a recording comes to, and the rows of those that
are raised, for the page and for `ullage watch --once`.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from typing import Final

from rich.text import Text

from ullage.ground.printable import printable
from ullage.operate.watch.alerts.event import Change, Event
from ullage.operate.watch.alerts.rule import Severity
from ullage.verbs.watch.text_parts import say_duration

_NEW_S: Final = 60.0
_DAY_S: Final = 86_400.0
_STYLES: Final = {
    Severity.CRITICAL: "bold red",
    Severity.WARNING: "yellow",
    Severity.INFO: "cyan",
}
_WIDE: Final = 120


def alert_line(event: Event) -> str:
    """An event in one line."""
    return printable(event.line())


def render_alerts(
    events: Sequence[Event], num_raised: int, seconds: float, num_samples: int
) -> str:
    """All events of a recording, and the sum: how many alerts, over how long a time."""
    count = sum(event.change is Change.RAISED for event in events)
    number = {0: "no alert", 1: "1 alert"}.get(count, f"{count} alerts")
    still = f", {num_raised} of them not over at its end" if num_raised else ""
    total = f"{number} in {say_duration(seconds)} ({num_samples} samples){still}"
    return "\n".join([*map(alert_line, events), total])


def active_rows(active: Sequence[Event], now_s: float, width: int, room: int) -> list[Text]:
    """A row for each incident that is not over: how grave, which rule, of what, since when, its
    value when it was raised; with room for the reason too.

    Args:
        active: the newest first.
        now_s: when (s since 1970).
        width: columns of a row.
        room: rows at most; the last one then says how many are left out.
    """
    visible = active if len(active) <= room else active[: max(room - 1, 0)]
    names = max((len(event.rule.name) for event in visible), default=0)
    rows = [_row(event, now_s, names, width) for event in visible]
    if len(visible) < len(active):
        rows.append(Text(f"{len(active) - len(visible)} more alerts", "bright_black"))
    return rows


def _row(event: Event, now_s: float, names: int, width: int) -> Text:
    severity = event.rule.severity
    # Words as well as colours say how grave it is.
    text = Text(f"{severity.value:<8} ", _STYLES[severity])
    text.append(f"{event.rule.name:<{names}}", "bold")
    text.append(printable(f"  {_short_subject(event)}"))
    text.append(f"  since {_say_moment(event.since_s, now_s)}", "bright_black")
    if 0 <= now_s - event.since_s < _NEW_S:
        text.append("  new", _STYLES[severity])
    text.append(f"  {_say_value(event)}")
    if width >= _WIDE:
        text.append(printable(f"  {event.text}"), "bright_black")
    text.truncate(width, overflow="ellipsis")
    return text


def _say_value(event: Event) -> str:
    """The value and the threshold: "8 min, below 10 min"."""
    unit, rule = event.rule.kind.unit, event.rule
    value = "unknown" if event.value is None else unit.format(event.value)
    return f"{value}, {'below' if rule.kind.is_below else 'above'} {unit.format(rule.threshold)}"


def _short_subject(event: Event) -> str:
    subject = event.subject
    words = [] if subject.gpu_index is None else [f"GPU {subject.gpu_index}"]
    if subject.pid is not None:
        words += [f"{subject.program or 'process'} {subject.pid}"]
    return "  ".join(words) or "machine"


def _say_moment(time_s: float, now_s: float) -> str:
    form = "%H:%M:%S" if abs(now_s - time_s) < _DAY_S else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(time_s))


def history_lines(events: Sequence[Event], now_s: float, width: int) -> list[str]:
    """The alerts raised and cleared, the newest first, each in as many lines as it needs."""
    lines = []
    for event in events:
        moment = _say_moment(event.time_s, now_s)
        severity = event.rule.severity.value
        says = f"{event.text} ({event.figures()})"
        words = (
            f"{moment} {event.change.value} {severity} {event.rule.name}: {event.subject}: {says}"
        )
        lines += textwrap.wrap(printable(words), max(width, 20), subsequent_indent="         ")
    return lines
