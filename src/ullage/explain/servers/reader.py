"""Reads a file of a server: a start-up log of vLLM or SGLang, or a saved page of its metrics.

start = read_server(path)       # SpecError: it is none of these
looks_like_server(path)         # False: whatever else it is
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ullage.errors import SpecError
from ullage.explain.servers.lines import MOST_CHARS, clean
from ullage.explain.servers.metrics import is_metrics, read_metrics
from ullage.explain.servers.sglang_log import is_sglang, read_sglang
from ullage.explain.servers.start import ServerStart
from ullage.explain.servers.vllm_log import is_vllm, read_vllm

_HEAD_BYTES: Final = 64
# How a pickle, a zip (torch.save) and gzip begin.
_BINARY: Final = (b"\x80", b"PK", b"\x1f\x8b")


def looks_like_server(path: Path) -> bool:
    """Whether a file is text with a line of a server; a snapshot of memory is not."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if not head or head.startswith(_BINARY) or b"\0" in head or head[:1] == b"{":
            return False
        text = clean(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return False
    return is_metrics(text) or is_sglang(text) or is_vllm(text)


def read_server(path: Path) -> ServerStart:
    """What the file says.

    Raises:
        SpecError: it cannot be read, or is neither a log nor a page of metrics.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(MOST_CHARS)
    except OSError as error:
        raise SpecError(f"{str(path)!r} cannot be read: {error.strerror or error}") from None
    start = read_start(text)
    if start is None:
        raise SpecError(
            f"{str(path)!r} is no memory snapshot, and no log of a server: found no line of vLLM "
            "or SGLang; give the server's whole output (2>&1), or a saved page of its /metrics"
        )
    return start


def read_start(text: str) -> ServerStart | None:
    """What a text says; None: it is of no server."""
    text = clean(text)
    if is_metrics(text):
        return read_metrics(text)
    if is_sglang(text) and "vllm" not in text.lower():
        return read_sglang(text)
    if is_sglang(text) and ("Load weight end" in text or "max_total_num_tokens=" in text):
        return read_sglang(text)
    return read_vllm(text) if is_vllm(text) else None
