"""Posts events to a web address: unchanged, or in the form that Slack takes.

An attempt may take 5 s in all; after a failure that may pass (no connection, 429, 5xx) there are
three more, 1, 2 and 4 s apart. Redirections are refused: an event goes to the address of the file.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlsplit

from ullage.ground.printable import printable
from ullage.ground.version import __version__
from ullage.operate.watch.alerts.event import Change, Event
from ullage.operate.watch.alerts.rule import Severity
from ullage.operate.watch.alerts.sinks.sink import SinkError

_TOO_MANY: Final = 429
_SERVER_FAILED: Final = 500
_MARKS: Final = {
    Severity.INFO: ":information_source:",
    Severity.WARNING: ":warning:",
    Severity.CRITICAL: ":rotating_light:",
}


def slack_document(event: Event) -> dict[str, Any]:
    """The event in the form of Slack's incoming webhooks; `&`, `<` and `>` are escaped."""
    is_over = event.change is Change.CLEARED
    mark = ":white_check_mark:" if is_over else _MARKS[event.rule.severity]
    text = printable(event.line())
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, entity)
    return {"text": f"{mark} {printable(event.host)}: {text}"}


@dataclass(frozen=True, slots=True)
class Webhook:
    """A web address.

    Attributes:
        url: where to; its path may be a secret and is in no message.
        form: "json" or "slack".
        timeout_s: for each attempt, from its connection to the end of the answer's head.
        pauses_s: between attempts; there is one more attempt than pauses.
    """

    url: str
    form: str = "json"
    timeout_s: float = 5.0
    pauses_s: tuple[float, ...] = (1.0, 2.0, 4.0)
    sleep: Callable[[float], None] = time.sleep

    def send(self, event: Event) -> None:
        """Posts the event, once if it arrives."""
        document = slack_document(event) if self.form == "slack" else event.document
        body = json.dumps(document, allow_nan=False).encode()
        for pause_s in (*self.pauses_s, None):
            problem, may_pass = self._post(body)
            if problem is None:
                return
            if pause_s is None or not may_pass:
                break
            self.sleep(pause_s)
        raise SinkError(f"{urlsplit(self.url).hostname}: {problem}")

    def _post(self, body: bytes) -> tuple[str | None, bool]:
        """Posts once; returns what went wrong, and whether another attempt may do."""
        headers = {"Content-Type": "application/json", "User-Agent": f"ullage/{__version__}"}
        request = urllib.request.Request(self.url, body, headers, method="POST")
        limit = _TimeLimit(self.timeout_s)
        opener = urllib.request.build_opener(_NoRedirection, limit)
        try:
            with limit, opener.open(request, timeout=self.timeout_s):
                if not limit.is_over:
                    return None, False
                raise TimeoutError  # what came is only the begin of an answer
        except urllib.error.HTTPError as error:
            error.close()
            may_pass = error.code == _TOO_MANY or error.code >= _SERVER_FAILED
            return f"the server answered {error.code}", may_pass
        except (OSError, HTTPException) as error:
            why = error.reason if isinstance(error, urllib.error.URLError) else error
            text = why.strerror if isinstance(why, OSError) else None
            return "timed out" if limit.is_over else text or str(why) or type(why).__name__, True


class _TimeLimit(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Ends an attempt's connection when its time is over: the limit of a socket is for each read,
    and begins again with each byte.
    """

    def __init__(self, limit_s: float) -> None:
        super().__init__()
        self.is_over = False
        self._twins: list[socket.socket] = []
        self._timer = threading.Timer(limit_s, self._end)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        for twin in self._twins:
            twin.close()

    def do_open(self, http_class: Any, req: Any, **arguments: Any) -> Any:  # noqa: ANN401
        def make(*words: Any, **more: Any) -> Any:  # noqa: ANN401
            connection = http_class(*words, **more)
            connection._create_connection = self._connect
            return connection

        return super().do_open(make, req, **arguments)

    def _connect(self, *words: Any) -> socket.socket:  # noqa: ANN401
        connected = socket.create_connection(*words)
        self._twins.append(connected.dup())  # whatever TLS makes of the other
        if self.is_over:
            raise TimeoutError
        return connected

    def _end(self) -> None:
        self.is_over = True
        for twin in self._twins:
            with suppress(OSError):
                twin.shutdown(socket.SHUT_RDWR)


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: object, **keywords: object) -> None:
        """None: the answer is an error."""
