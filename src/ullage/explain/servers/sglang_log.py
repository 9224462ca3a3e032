"""Reads the start-up log of SGLang, 0.3 to 0.5.23.

start = read_sglang(text)
start.tokens, start.free_at_end_bytes

SGLang writes GB and divides by 2^30. The model of a draft (speculative decoding) is loaded after
the model itself; its lines look the same, so of each figure the first counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ullage.explain.servers.failures import find_failure
from ullage.explain.servers.lines import NUMBER, first, number, options_of_call, size
from ullage.explain.servers.start import ServerStart
from ullage.units import GIB

_GB: Final = rf"{NUMBER} ?GB"
_MARKS: Final = ("Load weight begin", "Load weight end", "max_total_num_tokens=", "sglang",
                 "KV Cache is allocated", "mem_fraction_static", "Mamba Cache is allocated",
                 "SWAKVPool", "Memory pool end", "Post-capture KV sizing",
                 "increase --mem-fraction-static")  # fmt: skip
_POOL: Final = (
    r"(?m)^(?:\[[^\]]{0,80}?((?: [A-Z]+\d+){0,8})\])?.*"
    r"(?:KV Cache is|(?<!draft )KV cache) allocated\..{0,300}?#tokens: "
    rf"(\d+), (?:KV size: {_GB}|K size: {_GB}, V size: {_GB})"
)


def is_sglang(text: str) -> bool:
    """True if a text is a log of SGLang."""
    return any(mark in text for mark in _MARKS)


def read_sglang(text: str) -> ServerStart:
    """Reads a log of SGLang."""
    pools = _pools(text)
    fields: dict[str, Any] = {
        "free_bytes": _size(rf"Load weight begin\. avail mem={_GB}", text),
        "weights_bytes": _size(rf"Load weight end\..{{0,300}}?\bmem usage={_GB}", text),
        "graph_bytes": _graphs(text),
        "free_at_end_bytes": _size(rf"available_gpu_mem={_GB}", text),
        "state_bytes": _states(text),
        "cache_bytes": _size(rf"SWAKVPool mem usage: {_GB}", text) or sum(pools.values()) or None,
        "version": _text(r"sglang(?:==| |-)v?(\d+\.\d+\.\w+)", text),
    }
    match = first(r"max_total_num_tokens=(\d+)", text)
    fields["tokens"] = max(pools, default=None) if match is None else number(match[1])
    match = first(r"context_len=(\d+)", text)
    fields["max_model_len"] = None if match is None else number(match[1])
    options = _options(text)
    share = options.get("mem_fraction_static")
    start = ServerStart(
        engine="sglang", options=options, model=options.get("model_path"),
        share=_number(share), grain_bytes=GIB // 100,
        is_ready="The server is fired up and ready to roll" in text, **_completed(fields),
    )  # fmt: skip
    return start if start.is_ready else replace(start, failure=find_failure(start, text))


def _completed(fields: dict[str, Any]) -> dict[str, Any]:
    """The device as far as the log shows it: what was free before the weights."""
    fields["total_bytes"] = fields["free_bytes"]
    if fields["weights_bytes"] is None or not fields["tokens"]:
        return fields
    length = fields["max_model_len"]
    fields["concurrency"] = fields["tokens"] / length if length else None
    return fields


def _size(pattern: str, text: str) -> int | None:
    match = first(pattern, text)
    return None if match is None else size(match[1])


def _text(pattern: str, text: str) -> str | None:
    match = first(pattern, text)
    return None if match is None else match[1]


def _pools(text: str) -> dict[int, int]:
    """Bytes of the first rank's pools of keys and values, by their tokens."""
    # With sliding windows there are two. The pool of a draft has as many tokens as the model's, and
    # does not count. Where SGLang sizes the cache after it has captured graphs (0.5.23,
    # memory_pool.py), "VA upper bound" stands for addresses without memory, and "Post-capture KV
    # sizing" says what was allocated.
    pools: dict[int, int] = {}
    rows = re.findall(_POOL, text)
    for rank, tokens, *sizes in rows:
        if rank == rows[0][0]:
            pools.setdefault(number(tokens), sum(size(each) for each in sizes if each))
    return pools


def _states(text: str) -> int | None:
    """All that is kept of recurrent layers, what speculation holds of them, too."""
    line = text.partition("Mamba Cache is allocated")[2].partition("\n[")[0]
    sizes = re.findall(rf"\b(?:conv|ssm|intermediate)_\w+(?: size)?:? ?{_GB}", line)
    return sum(map(size, sizes)) if sizes else None


def _graphs(text: str) -> int | None:
    """All captures of the first rank: of decoding, and of prompts where those are captured."""
    sizes: dict[str, int] = {}
    for match in re.finditer(rf"Capture ([\w ]{{0,40}}?) ?(?:cuda|CUDA) graph end\..{{0,300}}?mem "
                             rf"usage={_GB}", text):  # fmt: skip
        sizes.setdefault(match[1], size(match[2]))
    return sum(sizes.values()) if sizes else None


def _options(text: str) -> Mapping[str, str]:
    match = first(r"server_args=ServerArgs\((.*)\)", text)
    options = dict(options_of_call(match[1])) if match is not None else {}
    for name in ("chunked_prefill_size", "max_prefill_tokens", "max_running_requests",
                 "mem_fraction_static"):  # fmt: skip
        match = first(rf"\b{name}=(\d+(?:\.\d+)?)", text)
        if match is not None:
            options.setdefault(name, match[1])
    return options


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
