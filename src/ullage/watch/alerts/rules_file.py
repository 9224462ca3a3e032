"""The rules and the receivers that ullage.toml asks for, in its section [watch].

    [watch.alert.forecast]              # a default rule, by its name
    below = "30min"

    [watch.alert.hot]                   # another rule
    kind = "temperature"
    above = -15
    for = "5min"

    [watch.notify.slack]
    url_env = "SLACK_URL"
    form = "slack"

    settings = load_settings(Path.cwd())

What is wrong is refused with the file and the line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from ullage.configuration.project_file import open_configuration
from ullage.configuration.sections import Section, Source
from ullage.errors import SpecError
from ullage.parsing import show_value
from ullage.units import parse_bytes
from ullage.watch.alerts.defaults import DEFAULTS, KINDS
from ullage.watch.alerts.receivers import Receiver, read_receiver, read_severity
from ullage.watch.alerts.rule import Kind, Rule, Unit

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_SECONDS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", re.ASCII)
_PERCENT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%", re.ASCII)
_MAX_SECONDS: Final = 30 * 86_400.0
_EXAMPLES: Final = {
    Unit.SHARE: '"95%" or 0.95', Unit.SECONDS: '"10min"', Unit.BYTES: '"1MiB"', Unit.COUNT: "3",
    Unit.DEGREES: "-5",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """The rules in force, and who hears of their events; `path` is None without a file."""

    rules: tuple[Rule, ...] = DEFAULTS
    receivers: tuple[Receiver, ...] = ()
    path: Path | None = None


def load_settings(start: Path, path: Path | None = None) -> Settings:
    """The settings of a directory or of the nearest one above that has a configuration; the
    defaults where there is none.

    Args:
        start: where the search begins.
        path: a file to read instead.

    Raises:
        SpecError: something in the file is wrong.
    """
    opened = open_configuration(start, path)
    if opened is None:
        return Settings()
    source, table = opened
    section = Section(source, (), table).inner("watch")
    rules = {rule.name: rule for rule in DEFAULTS}
    for name, fields in section.inner("alert").items().items():
        rule = _read_rule(_table(source, ("watch", "alert", name), fields), name, rules.get(name))
        if rule is None:
            rules.pop(name, None)  # a rule of the file alone, too
        else:
            rules[name] = rule
    receivers = tuple(
        read_receiver(_table(source, ("watch", "notify", name), fields), name)
        for name, fields in section.inner("notify").items().items()
    )
    section.refuse_rest()
    return Settings(tuple(rules.values()), receivers, source.path)


def _table(source: Source, keys: tuple[str, ...], fields: object) -> Section:
    if not isinstance(fields, Mapping):
        raise source.error(
            keys,
            f"{'.'.join(keys)} is {show_value(fields)}; expected a table: [{'.'.join(keys)}]",
        )
    if not _NAME.fullmatch(keys[-1]):
        raise source.error(
            keys, f"{keys[-1]!r} is not a name; expected letters, digits, and any of _ -"
        )
    return Section(source, keys, fields)


def _read_rule(section: Section, name: str, default: Rule | None) -> Rule | None:
    """The rule; None: it is switched off."""
    kind = _kind(section, name, default)
    is_enabled = section.switch("enabled", default=True)
    changes: dict[str, Any] = {}
    wrong, right = ("above", "below") if kind.is_below else ("below", "above")
    if wrong in section.names:
        raise section.error(
            wrong,
            f"does not go with the kind {kind.name!r}: it alerts {right}; write {right} = ...",
        )
    fields = [
        (right, "threshold", kind.unit), ("clear", "clear", kind.unit),
        ("for", "for_s", Unit.SECONDS), ("clear_for", "clear_for_s", Unit.SECONDS),
        *([("window", "window_s", Unit.SECONDS)] if kind.can_look_back else []),
        *([("least", "least", Unit.SHARE)] if kind.least_says else []),
    ]  # fmt: skip
    for key, field, unit in fields:
        value = section.amount(key)
        if value is not None:
            changes[field] = _amount(section, key, value, unit)
    if changes.get("window_s", 1.0) < 1:
        raise section.error("window", "is below a second; expected 1 s or more")
    severity = read_severity(section, "warning")
    if severity is not None:
        changes["severity"] = severity
    section.refuse_rest()
    base = default or replace(_default(kind), name=name)
    if "threshold" in changes and "clear" not in changes:
        changes["clear"] = _near(base, changes["threshold"])
    rule = replace(base, **changes)
    if not rule.is_beyond(rule.clear):
        return rule if is_enabled else None
    side = "at or above" if kind.is_below else "at or below"
    raise section.error(
        "clear", f"is {kind.unit.format(rule.clear)}; expected a value {side} the threshold "
        f"{kind.unit.format(rule.threshold)}, or an alert would be over as it begins",
    )  # fmt: skip


def _kind(section: Section, name: str, default: Rule | None) -> Kind:
    kind = section.text("kind", "temperature")
    if default is not None:
        if kind not in {None, default.kind.name}:
            raise section.error(
                "kind", f"is {kind!r}, and {name!r} is a default rule of the kind "
                f"{default.kind.name!r}; give the new rule another name",
            )  # fmt: skip
        return default.kind
    if kind is not None and kind in KINDS:
        return KINDS[kind]
    close = get_close_matches(kind or name, KINDS, n=1)
    meant = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(KINDS)}"
    if kind is None:
        raise section.error(
            "kind", f"is missing, and no default rule is called {name!r}; {meant}. Else write what "
            'to measure: kind = "temperature"',
        )  # fmt: skip
    raise section.error("kind", f"is {kind!r}; {meant}")


def _default(kind: Kind) -> Rule:
    return next(rule for rule in DEFAULTS if rule.kind is kind)


def _near(base: Rule, threshold: float) -> float:
    """Where a changed rule clears: as near to its threshold as the default does, if that does not
    lie on the wrong side of what is possible.
    """
    if base.clear == base.threshold:
        return threshold
    if base.kind.unit in {Unit.DEGREES, Unit.COUNT} or base.threshold == 0:
        near = threshold + base.clear - base.threshold
        is_negative = base.kind.unit is Unit.COUNT and near < 0
        return 0.0 if is_negative else near
    return threshold * base.clear / base.threshold


def _amount(section: Section, key: str, value: str | int | float, unit: Unit) -> float:
    """A number of a unit."""
    number: float | None = None
    if not isinstance(value, str):
        number = float(value)
    elif unit is Unit.BYTES:
        try:
            number = float(parse_bytes(value))
        except SpecError as error:
            raise section.error(key, f": {error}") from None
    elif unit is Unit.SECONDS and (match := _DURATION.fullmatch(value.strip())):
        number = float(match[1]) * _SECONDS[match[2]] if match[2] in _SECONDS else None
    elif unit is Unit.SHARE and (match := _PERCENT.fullmatch(value.strip())):
        number = float(match[1]) / 100
    if number is None or not math.isfinite(number):
        raise section.error(key, f"is {value!r}; expected a value such as {_EXAMPLES[unit]}")
    if unit is not Unit.DEGREES and number < 0:
        raise section.error(key, f"is {value!r}; expected 0 or more")
    if unit is Unit.SHARE and number > 10:
        raise section.error(key, f"is {value!r}; expected a share, such as {_EXAMPLES[unit]}")
    if unit is Unit.SECONDS and number > _MAX_SECONDS:
        raise section.error(key, f"is {value!r}; expected 30 days at most")
    return number
