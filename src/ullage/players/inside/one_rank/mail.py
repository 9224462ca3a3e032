"""Objects between ranks that are played in processes of their own: a directory that they share.

A rank that needs another's object waits for the file. Who started the ranks sees what is wanted and
starts that rank too, if it does not run yet; a rank that has ended without sending it is marked so.

    mail = Mail(directory, rank=3)
    mail.send("2 to 3, 0", payload)                 # in rank 2
    mail.receive("2 to 3, 0", sender=2)             # in rank 3: payload, or None
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.02
# Two ranks that wait for each other, as no real job would, are not to wait for ever.
_PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class Mail:
    """The directory, as one rank sees it."""

    directory: Path
    rank: int

    def send(self, name: str, payload: bytes) -> None:
        """Leaves an object for whoever wants it."""
        aside = self.directory / f"{name}.part{self.rank}"
        aside.write_bytes(payload)
        aside.replace(self.directory / name)

    def receive(self, name: str, sender: int) -> bytes | None:
        """Waits for an object; None where its sender has ended, or goes on, without sending it."""
        path = self.directory / name
        if not path.exists():
            (self.directory / f"wanted-{sender}").touch()
        ended = self.directory / f"ended-{sender}"
        given_up_s = time.monotonic() + _PATIENCE_S
        while not path.exists():
            is_late = time.monotonic() > given_up_s
            if (ended.exists() or is_late) and not path.exists():
                return None
            time.sleep(_POLL_S)
        return path.read_bytes()
