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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Final

from ullage.configuration.project_file import open_configuration
from ullage.configuration.tables import Name, Seconds, Share, parser, read_seconds, read_share
from ullage.protocol.options.option import options_of
from ullage.protocol.options.watch import WatchOptions
from ullage.protocol.plain import As, Mark, Misfit, choose, read_at
from ullage.units import parse_bytes
from ullage.watch.alerts.defaults import DEFAULTS, KINDS
from ullage.watch.alerts.receivers import Receiver
from ullage.watch.alerts.rule import Kind, Rule, Severity, Unit


@dataclass(frozen=True, slots=True)
class Settings:
    """The rules in force, and who hears of their events; `path` is None without a file."""

    rules: tuple[Rule, ...] = DEFAULTS
    receivers: tuple[Receiver, ...] = ()
    path: Path | None = None


def _read_number(value: str | float) -> float:
    if isinstance(value, str):
        raise Misfit(f"is {value!r}; expected a number")
    return value


def _read_count(value: str | float) -> float:
    if _read_number(value) < 0:
        raise Misfit(f"is {value!r}; expected 0 or more")
    return _read_number(value)


def _read_size(value: str | float) -> float:
    return float(parser(parse_bytes)(value)) if isinstance(value, str) else _read_count(value)


_READ_UNIT: Final[Mapping[Unit, Callable[[str | float], float]]] = {
    Unit.SHARE: read_share, Unit.SECONDS: read_seconds, Unit.BYTES: _read_size,
    Unit.COUNT: _read_count, Unit.DEGREES: _read_number,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _RuleKeys:
    """The keys of a rule's table; `above`, `below` and `clear` are of the unit of its kind."""

    name: Annotated[str, Mark.NAME]
    kind: str | None = None
    enabled: bool = True
    above: str | float | None = None
    below: str | float | None = None
    clear: str | float | None = None
    for_s: Annotated[Seconds | None, As("for")] = None
    clear_for_s: Annotated[Seconds | None, As("clear_for")] = None
    window_s: Annotated[Seconds | None, As("window")] = None
    least: Share | None = None
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class _WatchKeys:
    alert: Mapping[Name, _RuleKeys] = field(default_factory=dict)
    notify: Mapping[Name, Receiver] = field(default_factory=dict)


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
    keys = table.get("watch", {})
    if isinstance(keys, dict):  # the others are options of `ullage watch`
        keys = {key: value for key, value in keys.items() if key not in options_of(WatchOptions)}
    section = source.read(_WatchKeys, ("watch",), keys)
    rules = {rule.name: rule for rule in DEFAULTS}
    for name, keys in section.alert.items():
        with source.at("watch", "alert", name):
            rules[name] = _make_rule(keys, rules.get(name))
        if not keys.enabled:
            del rules[name]  # a rule of the file alone, too
    for name, receiver in section.notify.items():
        with source.at("watch", "notify", name):
            receiver.check()
    return Settings(tuple(rules.values()), tuple(section.notify.values()), source.path)


def _make_rule(keys: _RuleKeys, default: Rule | None) -> Rule:
    """A default rule with what a file changes of it, or another one of the same kind."""
    kind = _kind(keys, default)
    given = {
        name: value
        for name in ("for_s", "clear_for_s", "window_s", "least", "severity")
        if (value := getattr(keys, name)) is not None
    }
    for name, is_there in (("window_s", kind.can_look_back), ("least", bool(kind.least_says))):
        if name in given and not is_there:
            key = name.removesuffix("_s")
            raise Misfit(f"has no key {key!r}, as a rule of the kind {kind.name!r}", inner=key)
    if given.get("window_s", 1) < 1:
        raise Misfit("is below a second; expected 1 s or more", "window")
    wrong, right = ("above", "below") if kind.is_below else ("below", "above")
    if getattr(keys, wrong) is not None:
        raise Misfit(
            f"does not go with the kind {kind.name!r}: it alerts {right}; write {right} = ...",
            wrong,
        )
    for key, name in ((right, "threshold"), ("clear", "clear")):
        if getattr(keys, key) is not None:
            given[name] = read_at(key, _READ_UNIT[kind.unit], getattr(keys, key))
    base = default or replace(next(each for each in DEFAULTS if each.kind is kind), name=keys.name)
    if "threshold" in given and "clear" not in given:
        given["clear"] = _near(base, given["threshold"])
    rule = replace(base, **given)
    if rule.is_beyond(rule.clear):
        side = "at or above" if kind.is_below else "at or below"
        raise Misfit(
            f"is {kind.unit.format(rule.clear)}; expected a value {side} the threshold "
            f"{kind.unit.format(rule.threshold)}, or an alert would be over as it begins",
            "clear",
        )
    return rule


def _kind(keys: _RuleKeys, default: Rule | None) -> Kind:
    if default is not None:
        if keys.kind not in {None, default.kind.name}:
            raise Misfit(
                f"is {keys.kind!r}, and {keys.name!r} is a default rule of the kind "
                f"{default.kind.name!r}; give the new rule another name",
                "kind",
            )
        return default.kind
    if keys.kind is not None:
        kind: Kind = read_at("kind", partial(choose, choices=KINDS), keys.kind)
        return kind
    close = get_close_matches(keys.name, KINDS, n=1)
    meant = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(KINDS)}"
    raise Misfit(
        f"is missing, and no default rule is called {keys.name!r}; {meant}. Else write what to "
        'measure: kind = "temperature"',
        "kind",
    )


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
