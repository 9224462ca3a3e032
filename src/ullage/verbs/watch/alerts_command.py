"""`ullage watch --alerts`: the rules over what happens now, or over a recording."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from ullage.ground.errors import SpecError
from ullage.operate.watch.alerts.event import Event
from ullage.operate.watch.sample import Sample
from ullage.verbs.command_line.streams import say
from ullage.verbs.watch.alerts_function import read_rules, replay_alerts, report_alerts
from ullage.verbs.watch.options import WatchOptions


def check_alert_options(options: WatchOptions, *, is_shown: bool) -> None:
    """Refuses options that do not go together; raises SpecError.

    is_shown: whether alerts are shown beside the samples anyway.
    """
    if options.alerts and options.once:
        raise SpecError("--alerts tells what happens over time; it does not go with --once")
    if options.config is not None and not options.alerts and not is_shown:
        raise SpecError(
            "--config names the rules of alerts, and --listen and --record alone show none; give "
            "--alerts too"
        )


def show_replayed_alerts(path: Path, config: Path | None, *, as_json: bool) -> int:
    """Shows the alerts of a recording; returns 1 if there are any."""
    replayed = replay_alerts(path, config=config, on_warning=_warn)
    if as_json:
        click.echo(json.dumps(replayed.document, indent=2))
    else:
        say(replayed.text())
    return replayed.exit_code


def show_alerts(
    stream: Iterator[Sample],
    config: Path | None,
    *,
    as_json: bool,
    on_event: Callable[[Event], None] | None = None,
) -> None:
    """Shows a line for each event of now, and notifies the receivers of ullage.toml; `on_event` is
    told of each.
    """
    from ullage.verbs.watch.alerts_text import alert_line

    settings = read_rules(config)
    if settings.path != config:
        _warn(f"configuration: {settings.path}")
    for event in report_alerts(stream, settings, _warn):
        if on_event is not None:
            on_event(event)
        if as_json:
            click.echo(json.dumps(event.document))
        else:
            say(alert_line(event))


def _warn(text: str) -> None:
    say(f"ullage: {text}", is_aside=True)
