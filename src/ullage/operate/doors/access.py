"""Who may ask: whoever brings the key or, where none is needed, the programs of this machine.

A server on loopback is reached by every page that is open in a browser there, and by whatever a
proxy on the machine passes on.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from typing import Final

from starlette.types import Scope

from ullage.ground.address import parse_address
from ullage.ground.errors import SpecError
from ullage.operate.doors.refusal import Refusal

_OF_PROXIES: Final = re.compile(rb"forwarded|x-forwarded-.*|x-real-ip|via")
_PORT: Final = re.compile(r":[0-9]{1,5}\Z")


def header(scope: Scope, name: bytes) -> bytes | None:
    """The value of a header; None: there is none."""
    return next((value for key, value in scope["headers"] if key == name), None)


def find_holder(scope: Scope, keys: Mapping[str, bytes], whose: str) -> str:
    """Whose key a request brings. All are compared each time, in constant time.

    Raises:
        Refusal: it has none, or another.
    """
    kind, _, word = (header(scope, b"authorization") or b"").partition(b" ")
    holders = [name for name, key in keys.items() if hmac.compare_digest(word.strip(), key)]
    if kind.lower() != b"bearer" or not holders:
        raise Refusal(401, f"send {whose}: Authorization: Bearer KEY")
    return holders[0]


def check_local(scope: Scope, remedy: str) -> None:
    """Accepts a request that a program of this machine, or a page of this server, sends itself.

    Raises:
        Refusal: a proxy passed it on, it names another host (as a page does whose name resolves to
            this machine), or a page of another origin sends it.
    """
    names = [name for name, _ in scope["headers"] if _OF_PROXIES.fullmatch(name)]
    if names:
        raise Refusal(403, f"{names[0].decode()!r} says that a proxy passed this on; {remedy}")
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if len(hosts) != 1 or not _is_loopback(hosts[0]):
        raise Refusal(403, "this server answers to 127.0.0.1 and localhost alone")
    own = f"{scope['scheme']}://".encode() + hosts[0]
    if any(value != own for name, value in scope["headers"] if name == b"origin"):
        raise Refusal(403, "a page of another origin asks for this")


def _is_loopback(host: bytes) -> bool:
    name = host.decode("ascii", "replace")
    try:
        return parse_address(name if _PORT.search(name) else f"{name}:0").is_loopback
    except SpecError:
        return False
