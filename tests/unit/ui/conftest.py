"""The page's application, asked without a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra ullage[ui]")

from ullage.verbs.ui.app import make_app

PORT = 8123
TOKEN = "t" * 32
HOST = f"127.0.0.1:{PORT}"
COOKIE = {"cookie": f"ullage-{PORT}={TOKEN}"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


Ask = Callable[..., Answer]


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """Asks the application: ask("POST", "/estimate", {...}), by default as the page itself does."""
    app = make_app(port=PORT, token=TOKEN, scratch=tmp_path)

    def ask_app(
        method: str, path: str, body: object = b"", *, headers: Mapping[str, str | None] = {}
    ) -> Answer:  # fmt: skip
        own: dict[str, str | None] = {"host": HOST, **COOKIE}
        if method == "POST":
            own["origin"] = f"http://{HOST}"
        sent = {name: value for name, value in {**own, **headers}.items() if value is not None}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return asyncio.run(_call(app, method, path, sent, content))

    yield ask_app


async def _call(
    app: Any, method: str, path: str, headers: Mapping[str, str], content: bytes
) -> Answer:
    """One request by ASGI; the body comes in pieces, as from a socket."""
    plain, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": plain, "raw_path": plain.encode(), "query_string": query.encode(),
        "root_path": "", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", PORT),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    size = 2**16
    pieces = [content[at : at + size] for at in range(0, len(content), size)] or [b""]
    messages: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        piece = pieces.pop(0) if pieces else b""
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    try:
        await app(scope, receive, send)
    except Exception:  # of ours: after its answer it goes to the terminal
        if not messages:
            raise
    found = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
    body = b"".join(message.get("body", b"") for message in messages[1:])
    return Answer(messages[0]["status"], found, body)
