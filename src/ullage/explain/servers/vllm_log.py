"""Reads the start-up log of vLLM, 0.6 to 0.33.

start = read_vllm(text)
start.tokens, start.failure

Each release says it in other words; FIGURES has them all, the newest first. Of several ranks the
first that prints a figure counts: they hold the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from ullage.explain.servers.failures import find_failure
from ullage.explain.servers.lines import NUMBER, first, number, options_of_dict, size
from ullage.explain.servers.start import ServerStart
from ullage.ground.errors import SpecError
from ullage.ground.units import GIB
from ullage.players.eager.serving.engines.vllm_releases import find_release

_GIB: Final = rf"{NUMBER} ?Gi?[Bb]"  # 0.6 writes GB and means GiB, and once Gib
Read = Callable[[str], Any]

FIGURES: Final[tuple[tuple[str, str, Read], ...]] = (
    # The line of a ready engine, 0.10 to 0.33; of weights and the rest outside together from 0.27.
    ("free_bytes", rf"Free memory on device (?:\S+ )?\({NUMBER}/", size),
    ("total_bytes", rf"Free memory on device (?:\S+ )?\([\d.]+/{NUMBER} GiB\)", size),
    ("share", rf"[Dd]esired GPU memory utilization (?:is )?\({NUMBER},", float),
    ("asked_bytes", rf"[Dd]esired GPU memory utilization (?:is )?\([\d.]+, {_GIB}\)", size),
    ("activation_bytes", rf"{_GIB}\s+for peak activation", size),
    ("outside_bytes", rf"{_GIB}\s+for non-torch memory", size),
    ("graph_bytes", rf"CUDA graph pool memory: {_GIB} \(actual\)", size),
    ("graph_bytes", rf"{_GIB}\s+for CUDAGraph memory", size),
    ("spare_bytes", r"--kv-cache-memory=(\d+)`? \([\d.]+ GiB\) to fully", int),
    # 0.20 and later.
    ("graph_estimate_bytes", rf"CUDA graph pool memory: [\d.]+ GiB \(actual\), {_GIB}", size),
    ("graph_estimate_bytes", rf"Estimated CUDA graph memory: {_GIB}", size),
    ("graph_bytes", rf"Graph capturing finished in [\d.]+ secs?, took {_GIB}", size),
    # 0.6.5 to 0.8, with V0: three lines that begin with the time.
    ("total_bytes", rf"total_gpu_memory \({_GIB}\)", size),
    ("share", rf"x gpu_memory_utilization \({NUMBER}\)", float),
    ("asked_bytes", rf"x gpu_memory_utilization \([\d.]+\)\s*= {_GIB}", size),
    ("weights_bytes", rf"model weights take {_GIB}", size),
    ("outside_bytes", rf"non_torch_memory takes {_GIB}", size),
    ("activation_bytes", rf"PyTorch activation peak memory takes {_GIB}", size),
    ("cache_bytes", rf"the rest of the memory reserved for KV Cache is {_GIB}", size),
    # Where debug lines are on.
    ("outside_bytes", rf"non-torch forward increase memory: {_GIB}", size),
    ("activation_bytes", rf"torch peak memory increase: {_GIB}", size),
    ("weights_bytes", rf"weights memory: {_GIB}", size),
    # 0.6.0 to 0.6.4.
    ("total_bytes", rf"total_gpu_memory ?= ?{_GIB}", size),
    ("share", rf"gpu_memory_utilization ?= ?{NUMBER}", float),
    ("outside_bytes", rf"non_torch_memory ?= ?{_GIB}", size),
    ("cache_bytes", rf"kv_cache_size ?= ?{_GIB}", size),
    ("weights_bytes", rf"Model loading took {_GIB}", size),
    ("weights_bytes", rf"Loading model weights took {_GIB}", size),
    ("cache_bytes", rf"Available KV cache memory: {_GIB}", size),
    ("cache_bytes", rf"reserved {_GIB} memory for KV Cache", size),
    ("tokens", r"(?:GPU|CPU) KV cache size: (\d[\d,]*) tokens", number),
    # By the platform: GPU, cuda or CUDA, hpu.
    ("num_blocks", r"# \w+ blocks: (\d+)", number),
    ("max_model_len", r"Maximum concurrency for (\d[\d,]*) tokens", number),
    (
        "concurrency",
        r"Maximum concurrency for [\d,]+ tokens per request: ~?(\d+(?:\.\d+)?)x",
        float,
    ),
    ("max_model_len", r"Using max model len (\d+)", number),
    ("max_model_len", r"max_seq_len=(\d+)", number),
    ("version", r"version (\d+\.\d+(?:\.\w+)*)", str),
    ("version", r"engine \(v(\d+\.\d+(?:\.\w+)*)", str),
    ("model", r"(?m)\bmodel   (\S+)$", str),
    ("model", r"serving model (\S+)", str),
    ("model", r"engine \(v\S+\) with config: model='([^']+)'", str),
    ("model", r"Starting to load model (\S+?)\.{0,3}\s", str),
)
"""(field, pattern, reader): for each field the first that is found counts."""

_MARKS: Final = (
    "Available KV cache memory", "GPU KV cache size", "vllm", "vLLM", "Loading model weights took",
    ", # CPU blocks: ", "Model loading took", "LLM engine (v", "Maximum concurrency for",
    "Free memory on device", "Graph capturing finished in", "x gpu_memory_utilization",
    "non_torch_memory", "CUDA graph pool memory", "Estimated CUDA graph memory",
    "No available memory for the cache blocks", "larger than the available KV cache memory",
    "that can be stored in KV cache", "exceeds available Mamba cache blocks",
)  # fmt: skip
_OLD_BLOCK: Final = 16
_READY: Final = ("Application startup complete", "Starting vLLM server", "init engine (profile")


def is_vllm(text: str) -> bool:
    """True if a text is a log of vLLM."""
    return any(mark in text for mark in _MARKS)


def read_vllm(text: str) -> ServerStart:
    """Reads a log of vLLM."""
    fields: dict[str, Any] = {}
    for name, pattern, read in FIGURES:
        if name in fields:
            continue
        match = first(pattern, text)
        if match is not None:
            fields[name] = read(match[1])
    options = _options(text)
    _complete(fields, options, text)
    start = ServerStart(
        engine="vllm", options=options, grain_bytes=GIB // 100,
        cached_from_bytes="memory for KV Cache as specified" in text,
        is_compile_cold=_is_cold(text), is_ready=any(mark in text for mark in _READY), **fields,
    )  # fmt: skip
    # A server that answered for a while may have failed, too.
    ends = ("EngineCore failed to start", "EngineDeadError")
    has_failed = not start.is_ready or any(end in text for end in ends)
    return replace(start, failure=find_failure(start, text)) if has_failed else start


def _options(text: str) -> Mapping[str, str]:
    """The options of the command, and those that the engine chose where it says so."""
    options: dict[str, str] = {}
    for name in ("max_num_batched_tokens", "max_num_seqs"):
        match = first(rf"\b{name}=(\d+)", text)
        if match is not None:
            options[name] = match[1]
    match = re.search(r"with config: (.*)", text)
    if match is not None:
        for name in _CONFIGURED:
            value = re.search(rf"\b{name}=([^,\s)]+)", match[1])
            if value is not None:
                options[name] = value[1].strip("'")
    match = re.search(r"non-default args: (\{.*\})", text)
    if match is not None:
        options.update(options_of_dict(match[1]))
    match = re.search(r"num_gpu_blocks_override=(\d+)", text)
    if match is not None:
        options["num_gpu_blocks_override"] = match[1]
    return {name: value for name, value in options.items() if name not in _NO_OPTIONS}


_CONFIGURED: Final = (
    "dtype", "quantization", "kv_cache_dtype", "tensor_parallel_size", "enforce_eager",
    "enable_prefix_caching", "enable_chunked_prefill",
)  # fmt: skip
"""The options in the engine's printed configuration."""
_NO_OPTIONS: Final = frozenset({
    "model", "model_tag", "host", "port", "served_model_name", "api_key", "subparser",
    "dispatch_function", "api_server_count", "allow_credentials", "disable_log_stats",
})  # fmt: skip


def _complete(fields: dict[str, Any], options: Mapping[str, str], text: str) -> None:
    """Figures that follow from others of the log."""
    match = first(rf"Actual usage is {_GIB} for consumed memory", text)
    if match is not None and "weights_bytes" in fields:
        fields["outside_bytes"] = max(0, size(match[1]) - fields["weights_bytes"])
    asked = re.fullmatch(NUMBER, options.get("gpu_memory_utilization", ""))
    if asked is not None and "share" not in fields:
        fields["share"] = float(asked[1])
    if "share" not in fields and "version" in fields:
        # The share that the release takes where the command says nothing.
        try:
            fields["share"] = find_release(fields["version"]).utilization
        except SpecError:
            fields["share"] = None
    total, share = fields.get("total_bytes"), fields.get("share")
    if "asked_bytes" not in fields and total is not None and share is not None:
        fields["asked_bytes"] = round(total * share)
    _separate_graphs(fields, text)
    peak = first(rf"peak_torch_memory ?= ?{_GIB}", text)
    if peak is not None and "weights_bytes" in fields:
        # 0.6's peak holds the weights.
        fields["activation_bytes"] = max(0, size(peak[1]) - fields["weights_bytes"])
    if "tokens" not in fields and "num_blocks" in fields:
        block = options.get("block_size", "")
        fields["block_tokens"] = int(block) if block.isdecimal() else _OLD_BLOCK
        fields["tokens"] = fields["num_blocks"] * fields["block_tokens"]


def _separate_graphs(fields: dict[str, Any], text: str) -> None:
    """Takes the estimate of the CUDA graphs out of the activations, where vLLM prints it as a part
    of them: these and the other parts are what the cache leaves of what was asked for. An estimate
    that was only made counts for nothing.
    """
    if "CUDA graph memory profiling is disabled" in text:
        fields.pop("graph_estimate_bytes", None)
    names = ("asked_bytes", "weights_bytes", "outside_bytes", "cache_bytes")
    if not {*names, "graph_estimate_bytes", "activation_bytes"} <= fields.keys():
        return
    asked, *others = (fields[name] for name in names)
    rest, estimate = asked - sum(others), fields["graph_estimate_bytes"]
    if abs(rest - fields["activation_bytes"]) < abs(rest - fields["activation_bytes"] - estimate):
        fields["activation_bytes"] = max(0, fields["activation_bytes"] - estimate)


def _is_cold(text: str) -> bool | None:
    """True if torch.compile ran; None: there is no sign of it either way."""
    if re.search(r"Compiling a graph for|saved AOT compiled function", text):
        return True
    return False if re.search(r"Directly load (?:AOT|the compiled)", text) else None
