"""The bytes that a real GPU leaves for the cache, from the engine's own figure on the phantom.

    cache = real_cache(engine, "h100-80gb")
    cache.low_bytes, cache.bytes, cache.high_bytes, cache.tokens

The engine measures its weights, its step and its graphs itself. What the phantom lacks of that is
what `ullage capacity` counts for it (unseen_bytes). Where it takes an estimate of its CUDA
graphs off the cache, they are those of the phantom's upper bound, for kernels with 4 KiB of
parameters; nearly all have less than 2, and take the lower one (docs/results/accuracy.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from ullage.facts.gpus.catalog import find_gpu
from ullage.operate.serve.outcome import Engine
from ullage.players.eager.serving.engines.vllm_releases import find_release
from ullage.players.eager.serving.vllm_memory import Step, unseen_bytes


@dataclass(frozen=True, slots=True)
class RealCache:
    """Bytes for the cache on a real GPU.

    Attributes:
        low_bytes, bytes, high_bytes: the lower bound, the likely value, the upper bound.
        low_tokens, tokens, high_tokens: of whole blocks.
    """

    low_bytes: int
    bytes: int
    high_bytes: int
    low_tokens: int
    tokens: int
    high_tokens: int


def real_cache(engine: Engine, gpu: str) -> RealCache | None:
    """The interval of an engine's cache; None: its bytes were named (--kv-cache-memory-bytes), or
    it has not as many blocks as they hold, because their number was (--num-gpu-blocks-override).

    Counts: unseen_bytes of the engine's release and step; smaller graphs.
    Ignores: what another start may count differently, such as one with a compile cache.
    Error: docs/results/serving.md.
    """
    if engine.is_cache_given or not engine.block_bytes:
        return None
    if engine.kv_cache_bytes // engine.block_bytes != engine.num_blocks:
        return None
    step = Step(
        engine.max_num_batched_tokens, engine.max_num_seqs, engine.tensor_parallel,
        find_release(engine.version), is_compiled=engine.has_graphs,
    )  # fmt: skip
    least, likely, most = unseen_bytes(find_gpu(gpu), step, engine.hidden)
    graphs = engine.graph_spread_bytes
    changes = (-most, graphs - likely, graphs - least)
    sizes = [max(0, engine.kv_cache_bytes + change) for change in changes]
    tokens = [
        size // engine.block_bytes * engine.kv_cache_tokens // engine.num_blocks for size in sizes
    ]
    return RealCache(*sizes, *tokens)
