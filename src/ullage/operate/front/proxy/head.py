"""Looks at a request's first line and headers before anything of it is believed.

None of a client's headers is ever passed on, and no part of a request says where it goes. What is
refused here would only be of use to somebody who hopes that two programs read it differently.
"""

from __future__ import annotations

import re
from typing import Final

from starlette.types import Scope

from ullage.operate.doors.refusal import MAX_HEADER_BYTES, Refusal

_MAX_HEADERS: Final = 100
_HOST: Final = re.compile(rb"[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")
_ONCE: Final = frozenset(
    (b"host", b"content-length", b"transfer-encoding", b"authorization", b"content-type")
)
_CONNECTION: Final = frozenset((b"keep-alive", b"close", b""))
# They ask for another path, method or host than that of the first line, or for another protocol.
_FORBIDDEN: Final = frozenset(
    (
        b"upgrade", b"http2-settings", b"proxy-connection", b"proxy-authorization", b"trailer",
        b"x-original-url", b"x-rewrite-url", b"x-http-method", b"x-http-method-override",
        b"x-method-override", b"x-forwarded-path",
    )
)  # fmt: skip


def check_head(scope: Scope, *, has_body: bool) -> None:
    """Accepts a request's head.

    Args:
        scope: of the request.
        has_body: whether it is to bring JSON.

    Raises:
        Refusal: it does not.
    """
    headers = scope["headers"]
    if sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEADER_BYTES:
        raise Refusal(431, f"the headers have more than {MAX_HEADER_BYTES} bytes")
    if len(headers) > _MAX_HEADERS:
        raise Refusal(431, f"there are more than {_MAX_HEADERS} headers")
    if b"%" in scope.get("raw_path", b"") or scope.get("query_string"):
        raise Refusal(400, "the path has escapes or a query; expected neither")
    names = [name.replace(b"_", b"-") for name, _ in headers]
    forbidden = sorted(_FORBIDDEN.intersection(names))
    if forbidden:
        raise Refusal(400, f"the header {forbidden[0].decode()!r} is not taken")
    values = dict(headers)
    if len(values) < len(names):
        repeated = sorted(name for name in _ONCE if names.count(name) > 1)
        if repeated:
            raise Refusal(400, f"there is more than one header {repeated[0].decode()!r}")
    if any(b"_" in name and name.replace(b"_", b"-") in _ONCE for name in values):
        raise Refusal(400, "a header's name has an underscore in place of a hyphen")
    if not _HOST.fullmatch(values.get(b"host", b"")):
        raise Refusal(400, "the header 'host' is missing, or it is not a host")
    words = {word.strip().lower() for word in values.get(b"connection", b"").split(b",")}
    if not words <= _CONNECTION:
        raise Refusal(400, "the header 'connection' names others; expected keep-alive or close")
    if not values.get(b"content-length", b"0").isdigit():
        raise Refusal(400, "the length of the body is not a number")
    if not has_body:
        return
    if values.get(b"content-encoding", b"identity").strip().lower() != b"identity":
        raise Refusal(415, "the body is compressed; send it unchanged")
    kind = values.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise Refusal(415, "the header 'content-type' is not 'application/json'")
    if scope["method"] != "POST":
        raise Refusal(405, "expected POST")
