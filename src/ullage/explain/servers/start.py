"""The start of a server as it printed it, and the use of the GPU's memory.

    start = read_start(text)                  # servers/reader.py
    start.tokens, start.cache_bytes, start.parts[0]

The parts are those that the engine prints. What it does not print is one part, "not printed", and
never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from ullage.ground.protocol.plain import figure

SHARE: Final = "gpu_memory_utilization"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a server did not start, or stopped.

    Attributes:
        what: in a sentence, with the engine's own figures.
        remedies: what to change, the least costly first.
    """

    what: str
    remedies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """The load of requests on a page of metrics; None: the page does not say.

    Attributes:
        usage_frac: of the cache.
        running, waiting: requests.
        num_preemptions: since the start.
        prefix_hit_frac: the share of the prompts' tokens that were in the prefix cache.
    """

    usage_frac: float | None = None
    running: int | None = None
    waiting: int | None = None
    num_preemptions: int | None = None
    prefix_hit_frac: float | None = None


@dataclass(frozen=True, slots=True)
class ServerStart:
    """A start, of the first rank; None: the log does not say.

    Attributes:
        engine: "vllm" or "sglang".
        version: such as "0.32.0".
        model: as the command named it.
        options: what was asked for, by vLLM's or SGLang's names, without dashes.
        total_bytes, free_bytes: of the device, before the server took any of it.
        share: of the device that the engine may take (gpu_memory_utilization); of SGLang
            mem_fraction_static.
        asked_bytes: what that is.
        weights_bytes: of the model.
        activation_bytes: the peak of the profiled step, beside the weights.
        outside_bytes: outside PyTorch's allocator, as the engine counts it.
        graph_estimate_bytes: taken off the cache for CUDA graphs before they are captured.
        graph_bytes: what they took.
        state_bytes: of recurrent layers, where the engine keeps them apart from the cache.
        cache_bytes, tokens: of the cache, as the engine prints both.
        cached_from_bytes: vLLM was told the bytes of its cache (kv_cache_memory_bytes).
        concurrency, max_model_len: requests of that length that fit at once.
        num_blocks, block_tokens: of the cache.
        free_at_end_bytes: of the device, once the server is ready.
        spare_bytes: what vLLM says that kv_cache_memory_bytes could be.
        is_compile_cold: the model was compiled anew; False: from a cache of an earlier start.
        is_ready: it says that it serves.
        failure: why it does not.
        num_starts: that the log has, such as of a container that was restarted; the last counts.
        failure_before: why the start before this one failed; None: it did not, or there is none.
        load: of a page of metrics.
        grain_bytes: the last digit of the sizes that were printed.
    """

    engine: str
    version: str | None = None
    model: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    total_bytes: int | None = None
    free_bytes: int | None = None
    share: float | None = None
    asked_bytes: int | None = None
    weights_bytes: int | None = None
    activation_bytes: int | None = None
    outside_bytes: int | None = None
    graph_estimate_bytes: int | None = None
    graph_bytes: int | None = None
    state_bytes: int | None = None
    cache_bytes: int | None = None
    tokens: int | None = None
    cached_from_bytes: bool = False
    concurrency: float | None = None
    max_model_len: int | None = None
    num_blocks: int | None = None
    block_tokens: int | None = None
    free_at_end_bytes: int | None = None
    spare_bytes: int | None = None
    is_compile_cold: bool | None = None
    is_ready: bool = False
    failure: Failure | None = None
    num_starts: int = 1
    failure_before: Failure | None = None
    load: Load | None = None
    grain_bytes: int = 0

    @figure
    def token_bytes(self) -> float | None:
        """Bytes of the cache for one token, as the engine counts tokens."""
        if not self.cache_bytes or not self.tokens or self.cache_bytes < 0:
            return None
        return self.cache_bytes / self.tokens

    @property
    def is_told_blocks(self) -> bool:
        """True if the number of blocks was given, so that the tokens are not what memory allows."""
        return self.options.get("num_gpu_blocks_override", "None") != "None"

    @figure
    def parts(self) -> tuple[Part, ...]:
        """Where the memory went; of the whole device, where its size was printed."""
        return tuple(parts_of(self))


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the device.

    Attributes:
        name: such as "weights".
        bytes: of it.
        what: in a few words.
    """

    name: str
    bytes: int
    what: str


def parts_of(start: ServerStart) -> Iterator[Part]:
    """The parts in the order in which the engine takes them; they add up to `total_bytes` where it
    is known.
    """
    is_share = start.asked_bytes is not None and start.engine == "vllm"
    counted = start.graph_estimate_bytes if is_share else start.graph_bytes
    printed = (
        ("weights", start.weights_bytes, "of the model"),
        ("activations", start.activation_bytes, "the most of the step that the engine tried"),
        ("outside PyTorch", start.outside_bytes, "kernels, NCCL, libraries"),
        ("CUDA graphs", counted, _graphs_note(start)),
        ("states", start.state_bytes, "of recurrent layers"),
        ("KV cache", start.cache_bytes, _cache_note(start)),
    )
    taken = 0
    for name, size, what in printed:
        if size is None or (size <= 0 and name != "KV cache"):
            continue
        taken += max(0, size)
        yield Part(name, size, what)
    asked, total = start.asked_bytes, start.total_bytes
    if asked is not None and is_share and not start.cached_from_bytes:
        share = "the device" if start.share is None else f"{start.share:g}"
        yield Part("not printed", asked - taken, f"of the share of {share}")
        yield from _beyond(start, asked)
        return
    left = start.free_at_end_bytes
    if total is not None:
        if left is not None:
            yield Part("not printed", total - taken - left, "context, libraries, buffers")
        yield Part("left", total - taken if left is None else left, "of the device")


def _beyond(start: ServerStart, asked: int) -> Iterator[Part]:
    """The bytes beyond the share: graphs that the release does not count, and the rest."""
    if start.total_bytes is None:
        return
    graphs = start.graph_bytes if start.graph_estimate_bytes is None else None
    if graphs:
        yield Part("CUDA graphs", graphs, "as captured, beyond the share")
    rest = start.total_bytes - asked - (graphs or 0)
    yield Part("beyond the share", rest, "the engine leaves it")


def _graphs_note(start: ServerStart) -> str:
    if start.graph_estimate_bytes is None:
        return "as captured"
    if start.graph_bytes is None:
        return "estimated before the capture"
    return f"estimated; {start.graph_bytes / 2**30:.2f} GiB were captured"


def _cache_note(start: ServerStart) -> str:
    if start.tokens is None:
        return "of keys and values"
    text = f"{start.tokens:,} tokens"
    if start.concurrency is not None and start.max_model_len is not None:
        text += f", {start.concurrency:.2f} requests of {start.max_model_len:,}"
    return text
