"""Columns of integers packed for a web page: differences, byte planes, deflate, base64. A browser
unpacks them with its own DecompressionStream.

    packed = Packing()
    packed.add("birth", births, is_sorted=True)
    packed.text({"title": "train.py"})
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The best of zlib's levels for its time: 9 takes three times as long and saves only 2 %.
_LEVEL = 7


class Packing:
    """Packs columns with names, in the order of their addition."""

    def __init__(self) -> None:
        self._specs: list[dict[str, Any]] = []
        self._bodies: list[bytes] = []

    def add(self, name: str, values: NDArray[Any], *, is_sorted: bool = False) -> None:
        """Adds a column of integers; a sorted one is stored as differences."""
        wide = np.asarray(values).astype(np.int64)
        is_wide = bool(len(wide) and np.abs(wide).max() >= 2**31)
        spec: dict[str, Any] = {"name": name, "count": len(wide), "is_wide": is_wide}
        if is_sorted and len(wide):
            spec["first"] = int(wide[0])
            wide = np.diff(wide)
        base = int(wide.min()) if len(wide) else 0
        span = int(wide.max()) - base if len(wide) else 0
        width = next(width for width in (1, 2, 4, 8) if span < 1 << (8 * width))
        spec |= {"width": width, "base": base}
        narrow = np.ascontiguousarray((wide - base).astype(f"<u{width}"))
        self._specs.append(spec)
        self._bodies.append(narrow.view(np.uint8).reshape(-1, width).T.tobytes())

    def add_texts(self, name: str, texts: Sequence[str]) -> list[str]:
        """Adds a column of the texts' numbers; returns each text once, in the numbers' order."""
        numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        self.add(name, np.array([numbers[text] for text in texts], np.int64))
        return list(numbers)

    def text(self, header: Mapping[str, Any]) -> str:
        """Returns the packed text: the length of the header, the header as JSON with a description
        of the columns, then the columns.
        """
        encoded = json.dumps({**header, "columns": self._specs}, separators=(",", ":")).encode()
        body = b"".join([struct.pack("<I", len(encoded)), encoded, *self._bodies])
        return base64.b64encode(zlib.compress(body, _LEVEL)).decode("ascii")
