"""Where the exporter listens, and who may read there.

address = parse_address("0.0.0.0:9400")
address.is_loopback     # False: a token or a certificate is needed
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ullage.ground.errors import SpecError

_LOOPBACK: Final = "127.0.0.1"
_ADDRESS: Final = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[\w.-]+):)?(?P<port>[0-9]{1,5})")
_MIN_TOKEN_CHARS: Final = 16
_MAX_TOKEN_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Address:
    """A host's name or number, without the brackets of IPv6, and a port; 0: any that is free."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it; of a name but "localhost" nobody knows."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Reads [HOST:]PORT; without a host it is that of this machine alone.

    Raises:
        SpecError: it is no such text.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise SpecError(
            f"--listen is {text!r}; give [HOST:]PORT, for example 9400 (this machine alone), "
            "0.0.0.0:9400 (all of its addresses) or [::1]:9400"
        )
    return Address((match["host"] or _LOOPBACK).strip("[]"), int(match["port"]))


def read_token(path: Path) -> bytes:
    """The token in a file, without the line's end.

    Raises:
        SpecError: the file cannot be read, or has no token in one line of 16 characters or more.
    """
    try:
        with path.open("rb") as file:
            token = file.read(_MAX_TOKEN_BYTES + 1).strip()
    except OSError as error:
        raise SpecError(f"the token file {str(path)!r} cannot be read: {error.strerror}") from None
    is_plain = all(0x21 <= byte <= 0x7E for byte in token)
    if not is_plain or not _MIN_TOKEN_CHARS <= len(token) <= _MAX_TOKEN_BYTES:
        raise SpecError(
            f"the token file {str(path)!r} has no token: expected one line of "
            f"{_MIN_TOKEN_CHARS} letters, digits and signs or more, without spaces; "
            "make one with: openssl rand -hex 32"
        )
    return token


def open_certificate(certificate: Path, key: Path) -> ssl.SSLContext:
    """The TLS context of connections.

    Raises:
        SpecError: a file cannot be read, is no such file, or the two do not belong together.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # An encrypted key is refused: with a text as its password nobody is asked for one.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise SpecError(
            f"the certificate {str(certificate)!r} with the key {str(key)!r} cannot be used: "
            f"{reason}; both have to be PEM files, the key without a password"
        ) from None
    return context
