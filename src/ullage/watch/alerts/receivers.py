"""Who hears of events: a web address or a command, as ullage.toml says.

[watch.notify.mail]
command = ["mail", "-s", "GPU alert", "ops@example.org"]
severity = "critical"               # and nothing below
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from ullage.configuration.tables import read_words
from ullage.errors import SpecError
from ullage.protocol.plain import From, Mark, Misfit
from ullage.watch.alerts.rule import Severity
from ullage.watch.alerts.sinks.sink import Sink

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
        from ullage.watch.alerts.sinks.command import Command
        from ullage.watch.alerts.sinks.webhook import Webhook

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
