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
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from ullage.ground.config.project_file import open_configuration
from ullage.ground.config.tables import (
    Name,
    Seconds,
    Share,
    parser,
    read_seconds,
    read_share,
    read_words,
)
from ullage.ground.errors import SpecError
from ullage.ground.protocol.option import options_of
from ullage.ground.protocol.plain import As, From, Mark, Misfit, choose, read_at
from ullage.ground.units import parse_bytes
from ullage.operate.watch.alerts import meters
from ullage.operate.watch.alerts.reading import each_gpu, each_job
from ullage.operate.watch.alerts.rule import Kind, Rule, Severity, Unit
from ullage.operate.watch.alerts.sinks.sink import Sink
from ullage.verbs.watch.options import WatchOptions

# The ways to measure, and the rules that hold where no configuration says otherwise: one of each
# kind, under its name.

_ALL: Final = (
    Kind("allocated", Unit.SHARE, each_job, meters.measure_allocated,
         "peak of a job's allocated memory, as a share of what it can have"),
    Kind("reserved", Unit.COUNT, each_job, meters.measure_pressure,
         "samples in which the allocator retried or gave segments back, while nearly all that it "
         "can have is reserved (a full cache alone is healthy)",
         least_says="share of its limit that the job must have reserved", can_look_back=True),
    Kind("unpublished", Unit.SHARE, each_gpu, meters.measure_unpublished,
         "used memory of a GPU with processes that publish nothing, without the caches of those "
         "that do"),
    Kind("forecast", Unit.SECONDS, each_job, meters.measure_time_left,
         "time until the growing peak of a job's steps reaches its limit", is_below=True),
    Kind("growth", Unit.BYTES, each_job, meters.measure_growth,
         "growth of the peak from step to step over the last 36 steps or more"),
    Kind("fragmentation", Unit.SHARE, each_job, meters.measure_fragmentation,
         "unused pieces of partly used segments at the peak, as a share of reserved memory",
         least_says="share of its limit that the job must have reserved"),
    Kind("out-of-memory", Unit.COUNT, each_job, meters.measure_ooms,
         "times a job ran out of memory, and survived it", can_look_back=True),
    Kind("temperature", Unit.DEGREES, each_gpu, meters.measure_temperature,
         "temperature above that at which this GPU slows down (negative: below it)"),
    Kind("throttling", Unit.SHARE, each_gpu, meters.measure_throttling,
         "time in which heat or the power supply held the clocks down", can_look_back=True),
    Kind("utilisation", Unit.SHARE, each_gpu, meters.measure_utilisation_drop,
         "activity of multiprocessors and memory as a share of what it was with the same processes "
         "(utilisation where the driver knows no activity: it only says that a kernel was there)",
         is_below=True,
         least_says="utilisation that there must have been before", can_look_back=True),
    Kind("power", Unit.SHARE, each_gpu, meters.measure_power_change,
         "change of power with the same processes at the same utilisation", can_look_back=True),
    Kind("power-limit", Unit.SHARE, each_gpu, meters.measure_power_limit,
         "power as a share of the GPU's limit", can_look_back=True),
    Kind("ecc-uncorrected", Unit.COUNT, each_gpu, meters.measure_uncorrected,
         "uncorrected memory errors", can_look_back=True),
    Kind("ecc-corrected", Unit.COUNT, each_gpu, meters.measure_corrected,
         "corrected memory errors", can_look_back=True),
    Kind("gpu-lost", Unit.COUNT, each_gpu, meters.measure_loss, "1 if the driver has lost the GPU"),
    Kind("idle-holder", Unit.COUNT, meters.each_process, meters.measure_idleness,
         "1 if a process holds memory and does nothing",
         least_says="share of the GPU's memory that it must hold"),
    Kind("straggler-time", Unit.SHARE, meters.each_rank, meters.measure_straggler_time,
         "time of a rank's step above that of the other ranks here (ranks that wait for each other "
         "all take as long as the slowest)"),
    Kind("straggler-memory", Unit.SHARE, meters.each_rank, meters.measure_straggler_memory,
         "difference of a rank's peak from that of the other ranks here"),
    Kind("scaler-skips", Unit.SHARE, meters.each_scaled_job, meters.measure_scaler_skips,
         "share of the last steps that the gradient scaler skipped, after its first 50"),
)  # fmt: skip
KINDS: Final[Mapping[str, Kind]] = {kind.name: kind for kind in _ALL}

_MINUTE: Final = 60.0


def _rule(name: str, threshold: float, clear: float, **fields: float | Severity) -> Rule:
    return Rule(name, KINDS[name], threshold, clear, **fields)  # type: ignore[arg-type]


DEFAULTS: Final = (
    _rule("allocated", 0.95, 0.90, clear_for_s=_MINUTE),
    _rule("reserved", 2, 0, clear_for_s=30, window_s=120, least=0.9),
    _rule("unpublished", 0.90, 0.85, for_s=_MINUTE, clear_for_s=_MINUTE),
    _rule("forecast", 10 * _MINUTE, 20 * _MINUTE, for_s=_MINUTE, clear_for_s=_MINUTE,
          severity=Severity.CRITICAL),
    _rule("growth", 4096, 0, for_s=_MINUTE, clear_for_s=_MINUTE),
    _rule("fragmentation", 0.30, 0.20, for_s=_MINUTE, clear_for_s=_MINUTE, least=0.5),
    _rule("out-of-memory", 0, 0, window_s=5 * _MINUTE, severity=Severity.CRITICAL),
    _rule("temperature", -5, -10, for_s=30, clear_for_s=_MINUTE),
    _rule("throttling", 0.5, 0.1, clear_for_s=_MINUTE, window_s=_MINUTE),
    _rule("utilisation", 0.5, 0.8, for_s=5 * _MINUTE, clear_for_s=_MINUTE, window_s=_MINUTE,
          least=0.5),
    _rule("power", 0.35, 0.20, for_s=_MINUTE, clear_for_s=_MINUTE, window_s=_MINUTE),
    _rule("power-limit", 1.05, 1.02, for_s=30, clear_for_s=_MINUTE, window_s=30),
    _rule("ecc-uncorrected", 0, 0, window_s=10 * _MINUTE, severity=Severity.CRITICAL),
    _rule("ecc-corrected", 100, 10, window_s=10 * _MINUTE),
    _rule("gpu-lost", 0, 0, severity=Severity.CRITICAL),
    _rule("idle-holder", 0, 0, for_s=30 * _MINUTE, least=0.05, severity=Severity.INFO),
    _rule("straggler-time", 0.25, 0.10, for_s=30, clear_for_s=_MINUTE),
    _rule("straggler-memory", 0.15, 0.10, for_s=30, clear_for_s=_MINUTE),
    _rule("scaler-skips", 0.20, 0.05, clear_for_s=30),
)  # fmt: skip


# Who hears of events: a web address or a command, as ullage.toml says.

_TARGETS: Final = ("url", "url_env", "command")


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_fine = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_fine = False
    if not is_fine or any(character <= " " for character in url):
        # The address may be a secret.
        raise Misfit("is not a web address; expected one that begins with https://")
    return url


def _read_command(value: object) -> tuple[str, ...]:
    words = read_words(value) if isinstance(value, list) else ()
    if not words or not words[0].strip():
        raise Misfit('is not a list of words; expected such as: command = ["mail", "me"]')
    return words


@dataclass(frozen=True, slots=True)
class Receiver:
    """One receiver, with one of its targets.

    Attributes:
        name: as in the file.
        severity: the least severity that it hears of.
        url, url_env: a web address, or the variable that has it (an address may be a secret).
        form: of what is posted there: "json" (`ullage.alert/1`) or "slack"; None: "json".
        command: is run for each event, with its text on stdin.
    """

    name: Annotated[str, Mark.NAME]
    severity: Severity = Severity.INFO
    url: Annotated[str, _check_url] | None = None
    url_env: str | None = None
    form: Literal["json", "slack"] | None = None
    command: Annotated[tuple[str, ...], From(object), _read_command] = ()

    def open(self, environment: Mapping[str, str]) -> Sink:
        """Opens the sink of its events.

        Raises:
            SpecError: the variable with its address is not set.
        """
        # What events are sent with takes memory; the page, which only shows them, does without.
        from ullage.operate.watch.alerts.sinks.command import Command
        from ullage.operate.watch.alerts.sinks.webhook import Webhook

        if self.command:
            return Command(self.command)
        url = self.url or environment.get(self.url_env or "", "")
        if not url.startswith(("http://", "https://")):
            state = "holds no web address" if url else "is not set"
            raise SpecError(
                f"the variable {self.url_env!r} of watch.notify.{self.name} {state}; "
                "set it to an address that begins with https://"
            )
        return Webhook(url, self.form or "json")

    def check(self) -> None:
        """Raises a Misfit where it has no target or several."""
        targets = [key for key in _TARGETS if getattr(self, key)]
        if not targets:
            raise Misfit(
                "is missing; write where events go, one of: "
                'url = "https://...", url_env = "SLACK_URL", command = ["mail", "me"]',
                "url",
            )
        if len(targets) > 1:
            raise Misfit(f"and {targets[0]} are both there; keep one of them", targets[1])
        if self.form is not None and self.command:
            raise Misfit("is for a web address, and this has a command; remove it", "form")


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
