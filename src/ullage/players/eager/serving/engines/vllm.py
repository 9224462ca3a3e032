"""vLLM's KV cache: groups, pages, blocks, and the figures that it prints when it starts.

    pool = lay_out(model.layers, Settings(max_model_len=32768, max_batched_tokens=8192))
    pool.num_blocks(kv_bytes), pool.tokens(kv_bytes), pool.concurrency(kv_bytes)

Layers of one kind form groups of equal length; every group draws blocks from one pool, so a block
is as large as the largest group's pages. What vLLM prints as "GPU KV cache size: N tokens" is the
concurrency times max_model_len: no physical capacity where layers are of several kinds.

Exact, given the bytes: a test compares blocks, tokens, concurrency and block sizes with the
answers of a real engine (docs/results/serving.md).
Source: vLLM 0.32, v1/core/kv_cache_utils.py, v1/kv_cache_interface.py, platforms/interface.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from ullage.facts.families.kv_cache import state_bytes, token_bytes
from ullage.facts.families.layers import Attention, Cross, Index, Latent, Layer, Recurrent
from ullage.ground.errors import SpecError
from ullage.players.eager.serving.engines.vllm_releases import NEWEST, RELEASES, parse_version

VERSION: Final = (0, 32)
"""The release that the layout was checked against."""
BLOCK_SIZE: Final = 16
"""Tokens of a block where the user says nothing."""
# Groups take the length of the longest kind of layers while that is less than this many times the
# shortest's.
_BALANCE: Final = 1.5
_FIRST_V1: Final = next(release.name for release in RELEASES if not release.is_old_engine)
REFUSED: Final = frozenset({"bart", "t5"})
"""Model types of ours that vLLM has no model for (model_executor/models/registry.py)."""


def name_version(version: tuple[int, int] = VERSION) -> str:
    """A version as people write it."""
    return ".".join(map(str, version))


def describe_release(version: str | None) -> str:
    """The remark on a release's layout: a sentence, or "".

    Raises:
        SpecError: it is not a version.
    """
    if version is None:
        return (
            f"no release of vLLM was named: the cache's interval holds those of "
            f"{_FIRST_V1} to {name_version(NEWEST)}, its likely size is the newest's"
        )
    if parse_version(version) == VERSION:
        return ""
    return (
        f"vLLM {version} is laid out by the rules of {name_version()}; that has not been checked "
        f"for it: blocks, tokens and concurrency may differ. What it counts before the cache is "
        f"its own."
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that the layout depends on, besides the model.

    Attributes:
        max_model_len: tokens of the longest request.
        max_batched_tokens: the scheduler's budget for one step.
        kv: precision of keys and values.
        block_size: tokens of a block.
        tensor_parallel: ranks.
        has_prefix_caching: blocks of earlier requests are reused.
        batches_in_flight: steps that are scheduled before the first has finished: 2 with
            asynchronous scheduling, which is the default on GPUs.
        kernel_block: blocks must be a multiple of it: 16 for FlashAttention, 32 on the CPU.
        is_state_fp32: recurrent states are kept in 32 bits.
        speculated: tokens that a draft proposes in each step (speculative decoding).
        encoder_budget: tokens of encoded input in one step; None: max_batched_tokens.
    """

    max_model_len: int
    max_batched_tokens: int
    kv: str = "bf16"
    block_size: int = BLOCK_SIZE
    tensor_parallel: int = 1
    has_prefix_caching: bool = True
    batches_in_flight: int = 2
    kernel_block: int = 16
    is_state_fp32: bool = False
    speculated: int = 0
    encoder_budget: int | None = None

    @property
    def in_flight(self) -> int:
        """Tokens whose steps have not finished, so that their blocks are not freed yet."""
        return self.batches_in_flight * self.max_batched_tokens


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a block table.

    Attributes:
        layer: what one of them keeps.
        num_layers: number of the layers.
        block_size: tokens of a block.
        page_bytes: bytes of one layer's part of a block.
        request_blocks: blocks that vLLM charges a request of max_model_len.
    """

    layer: Layer
    num_layers: int
    block_size: int
    page_bytes: int
    request_blocks: int


@dataclass(frozen=True, slots=True)
class Pool:
    """The layout; its size depends on the bytes for the cache.

    Attributes:
        groups: the groups of layers that share the pool.
        settings: the settings that the layout follows from.
    """

    groups: tuple[Group, ...]
    settings: Settings

    @property
    def block_size(self) -> int:
        """Tokens of a block that vLLM prints: the fewest of any group."""
        usual = self.settings.block_size
        return min((group.block_size for group in self.groups), default=usual)

    @property
    def block_bytes(self) -> int:
        """The bytes of one block: the largest group's pages."""
        return max((group.num_layers * group.page_bytes for group in self.groups), default=0)

    @property
    def request_blocks(self) -> int:
        """That a request of max_model_len is charged, in all groups."""
        return sum(group.request_blocks for group in self.groups)

    @property
    def request_bytes(self) -> int:
        """The bytes of these blocks."""
        return self.request_blocks * self.block_bytes

    def num_blocks(self, kv_bytes: int) -> int:
        """Blocks in the bytes for the KV cache on one rank; one of them is never given out."""
        return kv_bytes // self.block_bytes if self.groups else 1

    def concurrency(self, kv_bytes: int) -> float:
        """Requests of max_model_len that fit, as vLLM prints it."""
        return self.num_blocks(kv_bytes) / self.request_blocks if self.groups else 0.0

    def tokens(self, kv_bytes: int) -> int:
        """The tokens that vLLM prints as its KV cache size."""
        return int(self.concurrency(kv_bytes) * self.settings.max_model_len)

    def users(self, kv_bytes: int) -> int:
        """Whole requests of max_model_len; none: vLLM does not start."""
        if not self.groups:
            return self.settings.max_batched_tokens // self.settings.max_model_len
        return max(0, self.num_blocks(kv_bytes) - 1) // self.request_blocks


def lay_out(layers: tuple[Layer, ...], settings: Settings) -> Pool:
    """Cuts a model's layers into groups, and gives them blocks and pages.

    Counts: blocks as vLLM's scheduler charges them, with the blocks of windows in flight.
    Ignores: what the bytes for the cache are; vllm_memory.py has an interval of them.
    Error: none; docs/results/serving.md says what it was compared with.
    Source: vLLM 0.32, v1/core/kv_cache_utils.py, v1/kv_cache_interface.py.

    Raises:
        SpecError: pages of the layers cannot be made equal.
    """
    cached_layers = [each for each in layers if isinstance(each, Recurrent) or token_bytes(each)]
    block, page = _hybrid_block(cached_layers, settings)
    buckets: dict[Layer, int] = {}
    for layer in cached_layers:
        buckets[layer] = buckets.get(layer, 0) + 1
    if not buckets:
        return Pool((), settings)
    if len(buckets) > 1 and all(_is_full(layer) for layer in buckets):
        return Pool((_uniform_group(buckets, block, settings),), settings)
    shortest, longest = min(buckets.values()), max(buckets.values())
    size = longest if longest < _BALANCE * shortest else shortest
    pages = {layer: _page(layer, block, page, settings) for layer in buckets}
    largest = max(page_bytes for _, page_bytes in pages.values())
    groups: list[Group] = []
    for layer, count in buckets.items():
        block_size = _raise_page(layer, *pages[layer], largest)
        num_groups = ceil(count / size)
        needed = _request_blocks(layer, block_size, settings)
        groups += [
            Group(layer, len(range(index, count, num_groups)), block_size, largest, needed)
            for index in range(num_groups)
        ]
    return Pool(tuple(groups), settings)


def _is_full(layer: Layer) -> bool:
    if isinstance(layer, Attention):
        return layer.window is None and layer.chunk is None
    return isinstance(layer, Latent | Index)


def _token_bytes(layer: Layer, settings: Settings) -> int:
    """The bytes on one rank; vLLM keeps an indexer's keys in 8 bits with a scale for 128 elements,
    whatever the precision of the cache (vLLM 0.32, model_executor/models/deepseek_v2.py).
    """
    if isinstance(layer, Index):
        return layer.width + layer.width // 128 * 4
    return token_bytes(layer, settings.kv, settings.tensor_parallel)


def _uniform_group(buckets: dict[Layer, int], block: int, settings: Settings) -> Group:
    """Layers that all see everything, with keys of several widths, such as a model's and its
    draft's: one group, whose block has a page of each (UniformTypeKVCacheSpecs).
    """
    first = next(iter(buckets))
    page = sum(count * block * _token_bytes(layer, settings) for layer, count in buckets.items())
    return Group(first, 1, block, page, _request_blocks(first, block, settings))


def _hybrid_block(layers: list[Layer], settings: Settings) -> tuple[int, int | None]:
    """Tokens of a block, and the page to which recurrent states are padded (None: they are not)."""
    # Beside recurrent layers the block of attention grows until its page holds a state.
    block = settings.block_size
    states = [layer for layer in layers if isinstance(layer, Recurrent)]
    attended = [layer for layer in layers if isinstance(layer, Attention | Latent)]
    if not states or not attended:
        return block, None
    state = max(_state_bytes(layer, settings) for layer in states)
    each = _token_bytes(attended[0], settings)
    step = max(settings.kernel_block, block)
    if isinstance(attended[0], Latent):
        step = max(step, 128)
    needed = step * ceil(state / (step * each))
    needed = settings.kernel_block * ceil(needed / settings.kernel_block)
    block = max(block, needed)
    return block, block * each


def _state_bytes(layer: Recurrent, settings: Settings) -> int:
    return state_bytes(
        layer,
        settings.tensor_parallel,
        is_state_fp32=settings.is_state_fp32,
        speculated=settings.speculated,
    )


def _page(layer: Layer, block: int, page: int | None, settings: Settings) -> tuple[int, int]:
    """Tokens of a layer's block, and its bytes, before pages are made equal."""
    if isinstance(layer, Recurrent):
        tokens = block if settings.has_prefix_caching else settings.max_model_len
        return tokens, page or _state_bytes(layer, settings)
    if isinstance(layer, Attention) and layer.window is not None:
        block = max(settings.kernel_block, block // settings.kernel_block * settings.kernel_block)
    return block, block * _token_bytes(layer, settings)


def _raise_page(layer: Layer, block: int, page_bytes: int, largest: int) -> int:
    if page_bytes == largest or isinstance(layer, Recurrent):
        return block
    if largest % page_bytes == 0:
        return block * (largest // page_bytes)
    if isinstance(layer, Latent):
        raise SpecError(
            f"pages of {page_bytes} bytes (latent attention) and {largest} bytes cannot share a "
            f"pool; vLLM refuses this model"
        )
    return block


def _request_blocks(layer: Layer, block: int, settings: Settings) -> int:
    longest, in_flight = settings.max_model_len, settings.in_flight
    if isinstance(layer, Recurrent):
        if not settings.has_prefix_caching:
            return 1 + settings.speculated
        # The state of the last block and the running one; Mamba 2 saves a third in mid-prompt.
        return 2 + (layer.kind == "mamba2") + settings.speculated
    if isinstance(layer, Cross):
        budget = settings.encoder_budget
        return ceil((settings.max_batched_tokens if budget is None else budget) / block)
    if isinstance(layer, Attention) and layer.window is not None:
        # The window need not begin where a block does: one more.
        return ceil(min(layer.window - 1 + in_flight, longest) / block) + 1
    if isinstance(layer, Attention) and layer.chunk is not None:
        return ceil(min(layer.chunk + in_flight, longest) / block)
    return ceil(longest / block)
