"""transformers' caches: those of `generate`, and the paged one of continuous batching.

    generated_bytes(model, batch=4, context=8192)           # DynamicCache, between two steps
    lay_out(model, context=8192).num_sectors(free_bytes)    # continuous batching

Source: transformers 5.23, cache_utils.py and generation/continuous_batching/cache.py; a test
compares both with what the library itself allocates (docs/results/serving.md).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from math import ceil, lcm
from typing import Final

from ullage.facts.families.kv_cache import request_bytes, state_bytes
from ullage.facts.families.layers import Attention, Layer, Model, Recurrent
from ullage.ground.errors import SpecError

UTILIZATION: Final = 0.9
"""max_memory_percent, of what is free; 0.8 with logit processors."""
BATCHED_TOKENS: Final = 8192
PAGE: Final = 256
"""Tokens of a page."""
_ALIGNMENT: Final = 128
_LOGIT_ROWS: Final = 1024
_TABLE: Final = 32  # blocks of a request in the block table that flash attention reads
_INT32: Final = 4
_INT64: Final = 8


def generated_bytes(
    model: Model, batch: int, context: int, *, encoded: int | None = None, is_prompt: bool = False
) -> int:
    """Bytes of the cache of `generate` in 16 bits once it holds a context.

    Counts: full layers, batch x context; sliding and chunked ones no more than their window;
    latents and the keys of their indexers; what the encoder gave; the convolution's inputs, all
    steps of its kernel, and recurrent states, which every model computes and keeps in 32 bits.
    StaticCache holds as much from the start, DynamicCache once it has grown. Right after a prompt
    (is_prompt) the windows of DynamicCache are views of all that was read, until the next step.
    Ignores: within a step, DynamicCache copies each layer's keys into a tensor one token longer
    and frees the old one, one layer's keys or values at a time.
    Error: none; a test compares all models of benchmarks/serving/caches.json.
    Source: transformers 5.23, cache_utils.py (DynamicSlidingWindowLayer, LinearAttentionLayer).

    Args:
        model: the model that is served.
        batch: requests.
        context: tokens that are in the cache; of StaticCache, that there is room for.
        encoded: positions of the encoder's output; None: as many as the model's encoder gives.
        is_prompt: they were all read in the last step.
    """
    return batch * sum(_kept(layer, context, encoded, is_prompt) for layer in _cached(model))


def _cached(model: Model) -> list[Layer]:
    """The layers as the library caches them: Falcon's keys and values are repeated for every head
    before they are kept, but where all heads share one (modeling_falcon.py, _split_heads).
    """
    return [
        replace(layer, kv_heads=layer.heads)
        if model.model_type == "falcon" and isinstance(layer, Attention) and layer.kv_heads > 1
        else layer
        for layer in model.layers
    ]


def _kept(layer: Layer, context: int, encoded: int | None, is_prompt: bool) -> int:  # noqa: FBT001
    if isinstance(layer, Recurrent):
        # All steps of the convolution's kernel, not all but one as in vLLM.
        return state_bytes(replace(layer, steps=layer.steps + 1), is_state_fp32=True)
    if is_prompt and isinstance(layer, Attention):
        layer = replace(layer, window=None, chunk=None)
    return request_bytes(layer, context, encoded=encoded)


@dataclass(frozen=True, slots=True)
class Sectors:
    """The paged cache of continuous batching: sectors that are cut into the blocks of each kind.

    Attributes:
        context: tokens of a request.
        kinds: layers of each kind, and a layer of it.
        heads: query heads.
        kv_heads: key and value heads on this rank.
        head_dim: elements of a key.
        hidden: elements of a token's vector.
        vocab: size of the vocabulary.
        batched: tokens of a step.
        element: bytes of an element.
        is_flash: flash attention: neither masks nor repeated heads, and batches in two sets.
        page: tokens of a page.
    """

    context: int
    kinds: tuple[tuple[Attention, int], ...]
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    batched: int
    element: int = 2
    is_flash: bool = True
    page: int = PAGE

    @property
    def block_size(self) -> int:
        """Tokens of a page."""
        return self.page

    @property
    def page_bytes(self) -> int:
        """The bytes of one layer's keys and values."""
        return 2 * self.page * self.kv_heads * self.head_dim * self.element

    @property
    def block_bytes(self) -> int:
        """The bytes of one sector, into which the blocks of every kind fit without rest."""
        return lcm(*(count * self.page_bytes for _, count in self.kinds), _ALIGNMENT)

    @property
    def _sector_tokens(self) -> int:
        fewest = min(count for _, count in self.kinds)
        return self.block_bytes // (fewest * self.page_bytes) * self.page

    @property
    def _buffers(self) -> int:
        return 2 if self.is_flash else 1

    @property
    def _masks(self) -> int:
        if self.is_flash:
            return 0
        return 2 if any(layer.window for layer, _ in self.kinds) else 1

    @property
    def _read_back(self) -> int:
        """Bytes of the keys and values of one token, as attention reads them."""
        heads = 2 * self.kv_heads if self.is_flash else 2 * self.heads + self.kv_heads
        return heads * self.head_dim * self.element

    @property
    def _step_token_bytes(self) -> int:
        new = self.hidden + (self.heads + 2 * self.kv_heads) * self.head_dim
        has_table = self.is_flash and not any(layer.window for layer, _ in self.kinds)
        table = len(self.kinds) * (_TABLE if has_table else 0) * _INT32
        inputs = 8 * _INT32 + table + len(self.kinds) * 2 * _INT64
        return new * self.element + self._read_back + self._buffers * inputs

    @property
    def _sector_cost(self) -> int:
        index = self._buffers * len(self.kinds) * _INT64
        return self.block_bytes + self._sector_tokens * (self._read_back + index)

    @property
    def _fixed(self) -> int:
        return 2 * self.block_bytes + _LOGIT_ROWS * (self.hidden * self.element + 4 * self.vocab)

    def _mask_bytes(self, sectors: int) -> int:
        tokens = self.batched * (sectors * self._sector_tokens + self.batched)
        return self._buffers * self._masks * self.element * tokens

    def num_sectors(self, available: int) -> int:
        """Sectors in the bytes that max_memory_percent leaves, after what a step needs."""
        left = available - self._fixed - self.batched * self._step_token_bytes
        sectors = left // self._sector_cost
        masks = self._mask_bytes(sectors)
        more = self._mask_bytes(sectors + 1) - masks
        return max(0, sectors - ceil(masks / (self._sector_cost + more)))

    def pool_bytes(self, available: int) -> int:
        """Bytes of the cache tensor, without the two sectors that no request gets."""
        return self.num_sectors(available) * self.block_bytes

    def num_blocks(self, kv_bytes: int) -> int:
        """Sectors in a pool."""
        return kv_bytes // self.block_bytes

    @property
    def request_blocks(self) -> int:
        """Sectors that a request of the context takes alone: kinds share none."""
        return self._sectors_for(1)

    def users(self, kv_bytes: int) -> int:
        """Requests of the context that fit at once; their blocks share sectors."""
        blocks = self.num_blocks(kv_bytes)
        counts = range(1, blocks * self._sector_tokens + 1)
        return bisect_right(counts, blocks, key=self._sectors_for)

    def _sectors_for(self, requests: int) -> int:
        total = 0
        for layer, count in self.kinds:
            tokens = min(self.context, layer.window or self.context)
            per_sector = self.block_bytes // (count * self.page_bytes)
            total += ceil(requests * ceil(tokens / self.page) / per_sector)
        return total

    def concurrency(self, kv_bytes: int) -> float:
        """Requests of the context that fit, not rounded."""
        return self.num_blocks(kv_bytes) / self.request_blocks

    def tokens(self, kv_bytes: int) -> int:
        """The pool in tokens of the whole model, as the library counts its blocks."""
        layers = sum(count for _, count in self.kinds)
        return kv_bytes // (layers * self.page_bytes) * self.page


@dataclass(frozen=True, slots=True)
class Requests:
    """The cache of `generate`: one for each request of the batch, as long as the context.

    Attributes:
        context: tokens of a request.
        block_bytes: bytes of one request's cache.
    """

    context: int
    block_bytes: int

    @property
    def block_size(self) -> int:
        """Tokens of a request."""
        return self.context

    def users(self, kv_bytes: int) -> int:
        """Requests that fit at once."""
        return kv_bytes // self.block_bytes if self.block_bytes else 0

    num_blocks = users

    def concurrency(self, kv_bytes: int) -> float:
        """Requests that fit, not rounded."""
        return kv_bytes / self.block_bytes if self.block_bytes else 0.0

    def tokens(self, kv_bytes: int) -> int:
        """The tokens of the requests that fit."""
        return self.users(kv_bytes) * self.context


def is_paged(model: Model) -> bool:
    """True if continuous batching takes the model: full and sliding attention of one shape."""
    attended = [each for each in model.layers if isinstance(each, Attention) and not each.chunk]
    shapes = {(layer.kv_heads, layer.head_dim) for layer in attended}
    return len(shapes) == 1 and len(attended) == len(model.layers)


def lay_out(
    model: Model, context: int, tensor_parallel: int = 1, batched: int = BATCHED_TOKENS, *,
    is_flash: bool = True,
) -> Sectors:  # fmt: skip
    """The layout of continuous batching.

    Counts: sectors, and the pages that each kind of layer takes of them.
    Ignores: what is not in the pool (weights, activations), which its bytes are to leave out.
    Error: none; docs/results/serving.md says what it was compared with.
    Source: transformers 5.23, generation/continuous_batching/cache.py.

    Raises:
        SpecError: the model has layers that it does not take.
    """
    if not is_paged(model):
        raise SpecError(
            f"{model.model_type}: transformers' continuous batching takes full and sliding "
            f"attention alone; plan it with engine vllm"
        )
    kinds: dict[Attention, int] = {}
    for each in _cached(model):
        if isinstance(each, Attention):
            layer = replace(each, is_shared=False)  # it makes pages for them, too
            kinds[layer] = kinds.get(layer, 0) + 1
    first = next(iter(kinds))
    if first.kv_heads % tensor_parallel:
        raise SpecError(
            f"num_key_value_heads={first.kv_heads} is not a multiple of "
            f"tensor_parallel={tensor_parallel}, which continuous batching needs"
        )
    return Sectors(
        context=context,
        kinds=tuple(kinds.items()),
        heads=first.heads,
        kv_heads=first.kv_heads // tensor_parallel,
        head_dim=first.head_dim,
        hidden=model.hidden,
        vocab=model.vocab,
        batched=batched,
        is_flash=is_flash,
    )
