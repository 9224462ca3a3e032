"""Reads a saved page of a server's metrics, in Prometheus' text format.

start = read_metrics(page)
start.tokens, start.load.usage_frac, start.load.num_preemptions
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from ullage.explain.servers.start import Load, ServerStart
from ullage.ground.units import GIB

_LINE: Final = re.compile(r"([\w:]+)(?:\{(.*)\})? ([^\s]+)(?: \d+)?")
_LABEL: Final = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    """A line of the page."""

    name: str
    labels: Mapping[str, str]
    value: float


def is_metrics(text: str) -> bool:
    """True if a text is such a page, of vLLM or SGLang."""
    return re.search(r"(?m)^(?:vllm|sglang)[:_]\w+(?:\{.*\})? \S+$", text) is not None


def samples(text: str) -> Iterator[Sample]:
    """The lines that are samples; others are left out."""
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None or line.startswith("#"):
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        yield Sample(match[1], dict(_LABEL.findall(match[2] or "")), value)


class _Page:
    """The samples by name; of several engines the sum, or the first."""

    def __init__(self, text: str) -> None:
        self._samples = list(samples(text))

    def total(self, *names: str) -> float | None:
        """The sum over engines, of the first name that is there."""
        for name in names:
            values = [sample.value for sample in self._samples if sample.name == name]
            if values:
                return sum(values)
        return None

    def mean(self, *names: str) -> float | None:
        """The mean over engines, of the first name that is there."""
        for name in names:
            values = [sample.value for sample in self._samples if sample.name == name]
            if values:
                return sum(values) / len(values)
        return None

    def labels(self, name: str) -> Mapping[str, str]:
        return next((sample.labels for sample in self._samples if sample.name == name), {})


def read_metrics(text: str) -> ServerStart:
    """The cache and the requests of a server, as in its page."""
    page = _Page(text)
    return _sglang(page) if page.total("sglang:max_total_num_tokens") is not None else _vllm(page)


def _vllm(page: _Page) -> ServerStart:
    labels = page.labels("vllm:cache_config_info")
    blocks, block = (_whole(labels.get(name)) for name in ("num_gpu_blocks", "block_size"))
    tokens = _whole(labels.get("kv_cache_size_tokens"))
    if tokens is None and blocks is not None and block is not None:
        tokens = blocks * block  # of releases before the label; of layers that see all alike
    concurrency = _number(labels.get("kv_cache_max_concurrency"))
    length = None
    if tokens is not None and concurrency:
        length = round(tokens / concurrency)
    share = _number(labels.get("gpu_memory_utilization"))
    names = ("cache_dtype", "enable_prefix_caching", "num_gpu_blocks_override", "block_size",
            "gpu_memory_utilization")  # fmt: skip
    options = {name: labels[name] for name in names if name in labels}
    hits, queries = (
        page.total(f"vllm:prefix_cache_{name}_total", f"vllm:gpu_prefix_cache_{name}_total")
        for name in ("hits", "queries")
    )
    load = Load(
        page.mean("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        _rounded(page.total("vllm:num_requests_running")),
        _rounded(page.total("vllm:num_requests_waiting")),
        _rounded(page.total("vllm:num_preemptions_total", "vllm:num_preemptions")),
        hits / queries if hits is not None and queries else None,
    )
    model = page.labels("vllm:num_requests_running").get("model_name")
    return ServerStart(
        "vllm", model=model, options=options, tokens=tokens, num_blocks=blocks, block_tokens=block,
        share=share, max_model_len=length,
        cache_bytes=_whole(labels.get("kv_cache_memory_bytes")),
        concurrency=concurrency,
        is_ready=True, load=load,
    )  # fmt: skip


def _sglang(page: _Page) -> ServerStart:
    cache, weights, graphs = (
        None if value is None else round(value * GIB)
        for value in (
            page.mean(f"sglang:{name}_memory_usage_gb") for name in ("kv_cache", "weight", "graph")
        )
    )
    load = Load(
        page.mean("sglang:token_usage"),
        _rounded(page.total("sglang:num_running_reqs")),
        _rounded(page.total("sglang:num_queue_reqs")),
        _rounded(page.total("sglang:num_retracted_requests_total", "sglang:num_retracted_reqs")),
        page.mean("sglang:cache_hit_rate"),
    )
    model = page.labels("sglang:max_total_num_tokens").get("model_name")
    return ServerStart(
        "sglang", model=model, tokens=_rounded(page.mean("sglang:max_total_num_tokens")),
        is_ready=True, load=load, cache_bytes=cache, weights_bytes=weights, graph_bytes=graphs,
    )  # fmt: skip


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "nan")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _rounded(value: float | None) -> int | None:
    return None if value is None or not math.isfinite(value) else round(value)
