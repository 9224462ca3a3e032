"""A file with a line of JSON for each event, for people and for programs such as logrotate."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from ullage.watch.alerts.event import Event
from ullage.watch.alerts.sinks.sink import SinkError


@dataclass(frozen=True, slots=True)
class LogFile:
    """Opened for each line, so that it may be moved away at any time."""

    path: Path

    def send(self, event: Event) -> None:
        """Appends one whole line."""
        line = f"{json.dumps(event.document, allow_nan=False)}\n".encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            number = os.open(self.path, flags, 0o644)
            try:
                os.write(number, line)
            finally:
                os.close(number)
        except OSError as error:
            raise SinkError(f"{str(self.path)!r}: {error.strerror}") from None
