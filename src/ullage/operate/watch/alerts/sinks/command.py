"""Runs a command for each event, with the event's text on its stdin: `mail`, `logger`, a script."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from ullage.ground.printable import printable
from ullage.operate.watch.alerts.event import Event
from ullage.operate.watch.alerts.sinks.sink import SinkError


@dataclass(frozen=True, slots=True)
class Command:
    """A command without a shell; it is ended if it takes longer than `timeout_s`."""

    words: tuple[str, ...]
    timeout_s: float = 30.0

    def send(self, event: Event) -> None:
        """Runs it once."""
        text = f"{printable(event.line())}\n\nhost: {event.host}\nincident: {event.incident}\n"
        try:
            done = subprocess.run(
                self.words,
                input=text.encode("utf-8", "replace"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=self.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SinkError(f"{self.words[0]!r} took more than {self.timeout_s:g} s") from None
        except OSError as error:
            raise SinkError(f"{self.words[0]!r}: {error.strerror}") from None
        if done.returncode:
            why = printable(done.stderr.decode("utf-8", "replace").strip()[-200:])
            raise SinkError(f"{self.words[0]!r} ended with {done.returncode}: {why}")
