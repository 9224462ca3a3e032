"""Alerts: what `ullage watch --alerts` and `ullage.replay_alerts` are.

    replayed = ullage.replay_alerts("night.jsonl")
    print(replayed.text())
    assert replayed.exit_code == 0          # no alert

The rules are those of ullage.toml, section [watch], and the defaults.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from ullage.answers.verb_answer import VerbAnswer
from ullage.ground.protocol.plain import Mark, Only, figure
from ullage.operate.watch.alerts.engine import Engine, watch_rules
from ullage.operate.watch.alerts.event import Event
from ullage.operate.watch.alerts.rules_file import Settings, load_settings
from ullage.operate.watch.sample import Sample
from ullage.verbs.watch.function import read_samples


@dataclass(frozen=True, slots=True)
class AlertReplay(VerbAnswer):
    """The alerts that the rules raise on a recording.

    Attributes:
        events: in order of time.
        raised: the events of the incidents that are not over at its end.
        first_s, last_s: the times of its first and of its last sample (s since the epoch).
        num_samples: how many it has.
        settings: the rules.
    """

    SCHEMA: ClassVar[str] = "ullage.alerts/1"

    events: tuple[Event, ...]
    raised: Annotated[tuple[Event, ...], Only("incident")]
    first_s: float
    last_s: float
    num_samples: int
    settings: Annotated[Settings, Mark.NO_KEY]

    @figure
    def rules(self) -> Sequence[str]:
        """The names of the rules."""
        return [rule.name for rule in self.settings.rules]

    @property
    def exit_code(self) -> int:
        """The exit code of the command line: 1 if any alert was raised."""
        return int(bool(self.events))

    def text(self, width: int = 80, *, full: bool = False) -> str:
        """The report for people: a line for each event, however wide."""
        from ullage.verbs.watch.alerts_text import render_alerts

        seconds = self.last_s - self.first_s
        return render_alerts(self.events, len(self.raised), seconds, self.num_samples)


def read_rules(config: str | Path | None = None) -> Settings:
    """The rules and receivers of ullage.toml here or above; the defaults without one.

    Args:
        config: the file to read instead.

    Raises:
        SpecError: something in the file is wrong; the message has its line.
    """
    return load_settings(Path.cwd(), None if config is None else Path(config))


def replay_alerts(
    path: str | Path,
    *,
    config: str | Path | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> AlertReplay:
    """Runs the rules over a recording of `ullage watch --record`; nobody is notified.

    Args:
        path: the recording.
        config: as for `read_rules`.
        on_warning: is told if the recording ends within a line.

    Raises:
        SpecError: the recording or the configuration is wrong.
    """
    settings = read_rules(config)
    engine = Engine(settings.rules)
    events: list[Event] = []
    times: list[float] = []
    for sample in read_samples(path, on_warning=on_warning):
        events += engine.take(sample)
        times.append(sample.time_s)
    return AlertReplay(tuple(events), engine.raised, min(times), max(times), len(times), settings)


def report_alerts(
    stream: Iterator[Sample], settings: Settings, on_problem: Callable[[str], None]
) -> Iterator[Event]:
    """The events of a stream of samples, each as it happens; receivers are notified meanwhile.

    Args:
        stream: the samples, as of `watch_gpus`.
        settings: the rules and the receivers.
        on_problem: is told if a receiver could not be notified; called in other threads too.

    Raises:
        SpecError: a variable with a receiver's address is not set.
    """
    from ullage.operate.watch.alerts.sinks.delivery import Delivery

    sinks = {receiver.name: receiver.open(os.environ) for receiver in settings.receivers}
    with Delivery(sinks, on_problem) as delivery:
        for event in watch_rules(stream, settings.rules):
            for receiver in settings.receivers:
                if event.rule.severity.rank >= receiver.severity.rank:
                    delivery.hand(event, receiver.name)
            yield event
