"""Who sends a request: the tenant whose key it brings.

    keys = Keys({"chat": b"..."})
    keys.find(b"Bearer ...")        # "chat"

Keys are compared as digests, in constant time, and all of them each time: how long it takes says
nothing about how much of a key was right, or whose it was.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from ullage.doors.access import read_bearer
from ullage.doors.refusal import Refusal


class Keys:
    """The tenants' keys; a tenant whose key is None takes requests without one."""

    def __init__(self, keys: Mapping[str, bytes | None]) -> None:
        self._digests = [(name, _digest(key)) for name, key in keys.items() if key is not None]
        self._open = next((name for name, key in keys.items() if key is None), None)

    def find(self, authorization: bytes | None) -> str:
        """The tenant.

        Raises:
            Refusal: no tenant has such a key.
        """
        if self._open is not None:
            return self._open
        digest = _digest(read_bearer(authorization))
        tenants = [name for name, key in self._digests if hmac.compare_digest(digest, key)]
        if not tenants:
            raise Refusal(401, "no tenant has this key; send Authorization: Bearer KEY")
        return tenants[0]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
