"""Guards the page's server: only this machine's user may send requests, and only from the page.

A server on 127.0.0.1 can be reached by every program and every web page that is open on the
machine. So each request must name the server as its host (a page of another name that resolves to
127.0.0.1 cannot), must not come from another origin, and must bring the token that was printed,
which the first visit to /enter/TOKEN turns into a cookie that scripts cannot read.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ullage.ground.errors import SpecError
from ullage.operate.doors.access import check_local
from ullage.operate.doors.refusal import Refusal

ENTER: Final = "/enter/"
_METHODS: Final = ("GET", "POST")
HEADERS: Final = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
# Runs no script and keeps nothing: it only leads on, within the site, with the cookie.
_ENTERED: Final = (files("ullage.verbs.ui") / "assets" / "enter.html").read_text(encoding="utf-8")


class TooLarge(SpecError):
    """A request is larger than the limit."""


class Guard:
    """Refuses forbidden requests, and adds the security headers to responses."""

    def __init__(self, app: ASGIApp, *, port: int, token: str) -> None:
        self.app = app
        self.token = token
        self.cookie = f"ullage-{port}"  # cookies do not tell ports apart

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses a request, or passes it on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']!r} is not served")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._check(scope)
            app = self._enter() if scope["path"].startswith(ENTER) else self.app
        except Refusal as refusal:
            app = PlainTextResponse(f"ullage: {refusal.message}\n", refusal.status)
        await app(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> None:
        """Raises a Refusal unless the request is allowed."""
        headers = Headers(scope=scope)
        method, path = scope["method"], scope["path"]
        check_local(scope, "open the address that `ullage ui` printed")
        if method not in _METHODS:
            raise Refusal(405, f"{method} is not answered; GET and POST are")
        if path.startswith(ENTER):
            if method != "GET" or not _are_equal(path.removeprefix(ENTER), self.token):
                raise Refusal(403, "the token is not that of this server")
            return
        is_other = headers.get("sec-fetch-site", "none") not in {"same-origin", "none"}
        if is_other or (method == "POST" and "origin" not in headers):
            raise Refusal(403, "requests come from the page itself alone")
        if not _are_equal(_read_cookies(headers).get(self.cookie, ""), self.token):
            raise Refusal(403, "open the address that `ullage ui` printed: it has the token")

    def _enter(self) -> Response:
        response = Response(_ENTERED, media_type="text/html")
        response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")
        return response


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The body of a request.

    Raises:
        TooLarge: it has more bytes; the rest is not read.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            raise TooLarge(f"the request has more than {limit_bytes} bytes")
    return bytes(body)


def _read_cookies(headers: Headers) -> Mapping[str, str]:
    try:
        parsed = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return {}
    return {name: morsel.value for name, morsel in parsed.items()}


def _are_equal(text: str, expected: str) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(text.encode(), expected.encode())
