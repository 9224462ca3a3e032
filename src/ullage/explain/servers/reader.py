"""Reads a file of a server: a start-up log of vLLM or SGLang, or a saved page of its metrics.

start = read_server(path)       # SpecError: it is none of these
looks_like_server(path)         # False: whatever else it is
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ullage.explain.servers.failures import find_failure
from ullage.explain.servers.lines import (
    MOST_CHARS,
    NUMBER,
    clean,
    first,
    number,
    options_of_call,
    size,
)
from ullage.explain.servers.metrics import is_metrics, read_metrics
from ullage.explain.servers.start import ServerStart
from ullage.explain.servers.vllm_log import is_vllm, read_vllm
from ullage.ground.errors import SpecError
from ullage.ground.units import GIB

# Reads the start-up log of SGLang, 0.3 to 0.5.23.

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
    }
    match = first(r"sglang(?:==| |-)v?(\d+\.\d+\.\w+)", text)
    fields["version"] = None if match is None else match[1]
    match = first(r"max_total_num_tokens=(\d+)", text)
    fields["tokens"] = max(pools, default=None) if match is None else number(match[1])
    match = first(r"context_len=(\d+)", text)
    fields["max_model_len"] = None if match is None else number(match[1])
    # The device as far as the log shows it: what was free before the weights.
    fields["total_bytes"] = fields["free_bytes"]
    if fields["weights_bytes"] is not None and fields["tokens"]:
        length = fields["max_model_len"]
        fields["concurrency"] = fields["tokens"] / length if length else None
    options = _options(text)
    share = options.get("mem_fraction_static")
    start = ServerStart(
        engine="sglang", options=options, model=options.get("model_path"),
        share=_number(share), grain_bytes=GIB // 100,
        is_ready="The server is fired up and ready to roll" in text, **fields,
    )  # fmt: skip
    return start if start.is_ready else replace(start, failure=find_failure(start, text))


def _size(pattern: str, text: str) -> int | None:
    match = first(pattern, text)
    return None if match is None else size(match[1])


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


_HEAD_BYTES: Final = 64
_HEAD_CHARS: Final = 200  # of a line, before what it says
# How a pickle, a zip (torch.save) and gzip begin.
_BINARY: Final = (b"\x80", b"PK", b"\x1f\x8b")
# What a start says first, in its order; what is said again, after some progress, is another's.
_BEGINNINGS: Final = (
    r"server_args=ServerArgs\(|API server version|[▀▄█] +version \d", "non-default args: ",
    r"Initializing an? (?:V\d )?LLM engine",
)  # fmt: skip
_PROGRESS: Final = (
    "weights took|Model loading took|Load weight (?:begin|end)|Error: |Application startup complete"
)
_LATER_ENGINE: Final = r"_DP[1-9]"
_OTHERS: Final[Mapping[str, str]] = {
    "TGI": r"text[-_]generation[-_](?:launcher|router|server|inference)",
    "TensorRT-LLM": r"\[TensorRT-LLM\]|\[TRT-LLM\]|tensorrt_llm",
    "Triton Inference Server": r"tritonserver|TRITONBACKEND_|model_lifecycle\.cc:",
    "Ollama": r"\bsource=\w+\.go:\d|\bOLLAMA_\w+:|\bollama (?:serve|runner)\b",
    "llama.cpp": r"\bllama_(?:model_load|context|kv_cache|init_from|new_context)|"
    r"\bllm_load_|(?m:^load_tensors: )|ggml_cuda_init",
    "LMDeploy": r"\blmdeploy\b|\[TM\]\[(?:INFO|WARNING|ERROR)",
}


def _read(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(MOST_CHARS)


def looks_like_server(path: Path) -> bool:
    """True if a file is text with a line of a server, read or not; a snapshot is not."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if not head or head.startswith(_BINARY) or b"\0" in head or head[:1] == b"{":
            return False
        text = clean(_read(path))
    except OSError:
        return False
    return any((is_metrics(text), is_sglang(text), is_vllm(text), find_other(text)))


def read_server(path: Path) -> ServerStart:
    """Reads a file of a server.

    Raises:
        SpecError: it cannot be read, or is neither a log nor a page of metrics.
    """
    try:
        text = _read(path)
    except OSError as error:
        raise SpecError(f"{str(path)!r} cannot be read: {error.strerror or error}") from None
    try:
        start = read_start(text)
    except SpecError as error:
        raise SpecError(f"{str(path)!r} cannot be explained: {error}") from None
    if start is None:
        raise SpecError(
            f"{str(path)!r} is neither a memory snapshot nor a server's log: found no line of vLLM "
            "or SGLang; give the server's whole output (2>&1), or a saved page of its /metrics"
        )
    return start


def read_start(text: str) -> ServerStart | None:
    """Reads a text, of several starts the last; None: it is of no server.

    Raises:
        SpecError: it is of a server whose log is not read.
    """
    text = clean(text)
    if is_metrics(text):
        return read_metrics(text)
    starts = [start for start in map(_read_one, split_starts(text)) if start is not None]
    last = starts[-1] if starts else None
    other = find_other(text)
    if other is not None and (last is None or not last.parts):
        raise SpecError(
            f"it is a log of {other}; expected one of vLLM or SGLang. `ullage capacity "
            "MODEL` says what the model takes in a server"
        )
    if last is None or len(starts) == 1:
        return last
    return replace(last, num_starts=len(starts), failure_before=starts[-2].failure)


def _read_one(text: str) -> ServerStart | None:
    is_figured = any(mark in text for mark in ("Load weight end", "max_total_num_tokens=",
                                               "KV Cache is allocated"))  # fmt: skip
    if is_sglang(text) and (is_figured or "vllm" not in text.lower()):
        return read_sglang(text)
    return read_vllm(text) if is_vllm(text) else None


def split_starts(text: str) -> list[str]:
    """The starts that a text has, each from its first line on: a container that is restarted goes
    on in the log of the one that ended.
    """
    places, last, end = [0], 0, 0
    for match in re.finditer("|".join(f"({words})" for words in _BEGINNINGS), text):
        line = text.rfind("\n", 0, match.start()) + 1
        # Engines that share a start (data parallel) each say that they begin.
        if re.search(_LATER_ENGINE, text[line : match.start()][:_HEAD_CHARS]):
            continue
        kind = match.lastindex or 0
        if (kind == 1 and last) or (
            kind <= (last or kind) and re.search(_PROGRESS, text[end:line])
        ):
            places.append(line)
        last, end = kind, match.end()
    return [text[a:b] for a, b in itertools.pairwise([*places, len(text)])]


def find_other(text: str) -> str | None:
    """The name of a server whose log this is, of those that are not read."""
    return next((name for name, words in _OTHERS.items() if re.search(words, text)), None)
