"""Who hears of events: a web address or a command, as ullage.toml says.

[watch.notify.mail]
command = ["mail", "-s", "GPU alert", "ops@example.org"]
severity = "critical"               # and nothing below
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from ullage.configuration.sections import Section
from ullage.errors import SpecError
from ullage.watch.alerts.rule import Severity
from ullage.watch.alerts.sinks.sink import Sink

FORMS: Final = ("json", "slack")
_TARGETS: Final = ("url", "url_env", "command")


@dataclass(frozen=True, slots=True)
class Receiver:
    """One receiver, with one of its targets.

    Attributes:
        name: as in the file.
        severity: the least severity that it hears of.
        url, url_env: a web address, or the variable that has it (an address may be a secret).
        form: of what is posted there: "json" (`ullage.alert/1`) or "slack".
        command: is run for each event, with its text on stdin.
    """

    name: str
    severity: Severity = Severity.INFO
    url: str | None = None
    url_env: str | None = None
    form: str = "json"
    command: tuple[str, ...] = ()

    def open(self, environment: Mapping[str, str]) -> Sink:
        """What its events go into.

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
        return Webhook(url, self.form)


def read_receiver(section: Section, name: str) -> Receiver:
    """The receiver of a table.

    Args:
        section: the table.
        name: its name.

    Raises:
        SpecError: it has no target or several, or one of its keys is wrong.
    """
    targets = [key for key in _TARGETS if key in section.names]
    if not targets:
        raise section.error(
            "url", "is missing; write where events go, one of: "
            'url = "https://...", url_env = "SLACK_URL", command = ["mail", "me"]',
        )  # fmt: skip
    if len(targets) > 1:
        raise section.error(targets[1], f"and {targets[0]} are both there; keep one of them")
    url, variable = section.text("url", "https://example.org"), section.text("url_env", "SLACK_URL")
    if url is not None:
        _check_url(section, url)
    form = section.text("form", "slack")
    if form is not None and targets[0] not in {"url", "url_env"}:
        raise section.error("form", f"is for a web address, and this has a {targets[0]}; remove it")
    if form not in {None, *FORMS}:
        raise section.error("form", f"is {form!r}; expected one of {', '.join(FORMS)}")
    receiver = Receiver(
        name,
        read_severity(section, "critical") or Severity.INFO,
        url,
        variable,
        form or "json",
        _command(section),
    )
    section.refuse_rest()
    return receiver


def read_severity(section: Section, example: str) -> Severity | None:
    """The severity of a table; None: it has none. Raises SpecError for an unknown word."""
    text = section.text("severity", example)
    try:
        return None if text is None else Severity(text)
    except ValueError:
        choices = ", ".join(each.value for each in Severity)
        raise section.error("severity", f"is {text!r}; expected one of {choices}") from None


def _check_url(section: Section, url: str) -> None:
    try:
        parts = urlsplit(url)
        is_fine = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_fine = False
    if not is_fine or any(character <= " " for character in url):
        raise section.error("url", "is not a web address; expected one that begins with https://")


def _command(section: Section) -> tuple[str, ...]:
    words = section.words("command")
    if words is None:
        return ()
    if isinstance(words, str) or not words or not words[0].strip():
        raise section.error(
            "command", 'is not a list of words; expected such as: command = ["mail", "me"]'
        )
    return tuple(words)
