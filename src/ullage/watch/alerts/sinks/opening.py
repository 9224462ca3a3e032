"""Makes the sinks of the receivers that ullage.toml names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ullage.errors import SpecError
from ullage.watch.alerts.receivers import Receiver
from ullage.watch.alerts.sinks.command import Command
from ullage.watch.alerts.sinks.sink import Sink
from ullage.watch.alerts.sinks.webhook import Webhook


def open_sinks(receivers: Sequence[Receiver], environment: Mapping[str, str]) -> dict[str, Sink]:
    """A sink of each receiver, by its name.

    Raises:
        SpecError: a variable with an address is not set.
    """
    return {receiver.name: _open(receiver, environment) for receiver in receivers}


def _open(receiver: Receiver, environment: Mapping[str, str]) -> Sink:
    if receiver.command:
        return Command(receiver.command)
    url = receiver.url or environment.get(receiver.url_env or "", "")
    if not url.startswith(("http://", "https://")):
        state = "holds no web address" if url else "is not set"
        raise SpecError(
            f"the variable {receiver.url_env!r} of watch.notify.{receiver.name} {state}; "
            "set it to an address that begins with https://"
        )
    return Webhook(url, receiver.form or "json")
