"""How much memory the machine could still give, by the kernel's own account."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+)", re.MULTILINE)


def available_host_bytes(proc: Path = Path("/proc")) -> int | None:
    """The bytes that the kernel could give without swapping; None where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        match = _AVAILABLE.search((proc / "meminfo").read_text(encoding="ascii"))
        return None if match is None else int(match[1]) << 10
    return None
