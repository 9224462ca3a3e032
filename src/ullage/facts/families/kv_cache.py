"""Bytes that a model keeps of what it has read, whatever engine runs it.

    token_bytes(layer, "fp8", tensor_parallel=2)       # of one layer, on one rank
    request_bytes(layer, context=8192)                  # the least that any engine can keep

Engines round up: to blocks, to pages that all layers share, to windows in flight. See engines/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ullage.facts.families.layers import Attention, Cross, Index, Latent, Layer, Recurrent
from ullage.ground.errors import SpecError


@dataclass(frozen=True, slots=True)
class Precision:
    """The storage of keys and values.

    Attributes:
        bits: bits of an element.
        scale_bytes: bytes of the scales of each head's key, and of its value, for each token.
        group: elements that share a scale of one byte; 0: none do.
        latent_bytes: of a packed latent of 512 + 64 elements with its scales; None: it is stored
            as the bits say; 0: the latent cannot be stored so.
    """

    bits: int
    scale_bytes: int = 0
    group: int = 0
    latent_bytes: int | None = None

    def vector_bytes(self, elements: int) -> int:
        """The bytes of one head's key, or of its value, for one token."""
        scales = elements // self.group if self.group else self.scale_bytes
        return elements * self.bits // 8 + scales


PRECISIONS: Final = {
    "fp32": Precision(32),
    "bf16": Precision(16),
    "fp16": Precision(16),
    "fp8": Precision(8),  # one scale for the whole tensor, held with the weights
    "fp8_per_token_head": Precision(8, scale_bytes=4, latent_bytes=0),
    "int8_per_token_head": Precision(8, scale_bytes=4, latent_bytes=0),
    "int4_per_token_head": Precision(4, scale_bytes=4, latent_bytes=0),
    "nvfp4": Precision(4, group=16, latent_bytes=0),
    "fp8_ds_mla": Precision(8, latent_bytes=656),
    "nvfp4_ds_mla": Precision(4, latent_bytes=352),
}
"""By the name that vLLM gives it. Source: vLLM 0.32, v1/kv_cache_interface.py, triton_attn.py,
flashinfer.py (nvfp4: half a byte and an fp8 scale for 16), mla_attention.py (the packed latents).
"""

_PACKED_LATENT: Final = 576


def find_precision(name: str) -> Precision:
    """The precision of a name.

    Raises:
        SpecError: there is none.
    """
    if name not in PRECISIONS:
        raise SpecError(f"kv={name!r} is not a precision; expected one of {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


def token_bytes(layer: Layer, precision: str = "bf16", tensor_parallel: int = 1) -> int:
    """Bytes that a layer keeps for one token, on one rank.

    Counts: keys and values, 2 x heads x head_dim x element, with the scales that ride along; of
    latent attention the one latent, which every rank holds whole. Key and value heads are cut over
    the ranks, and repeated once there are fewer heads than ranks. Nothing where a layer reads an
    earlier one's.
    Ignores: rounding up to blocks and shared pages (engines/).
    Error: none; a test compares it with vLLM's page sizes.
    Source: Kwon et al. 2023, arXiv:2309.06180; for latents arXiv:2405.04434.
    """
    store = find_precision(precision)
    if isinstance(layer, Attention):
        heads = 0 if layer.is_shared else max(1, layer.kv_heads // tensor_parallel)
        return 2 * heads * store.vector_bytes(layer.head_dim)
    if isinstance(layer, Latent):
        return _latent_bytes(layer, store, precision)
    if isinstance(layer, Index):
        return store.vector_bytes(layer.width)
    if isinstance(layer, Cross):
        return 2 * (layer.heads // tensor_parallel) * store.vector_bytes(layer.head_dim)
    return 0


def _latent_bytes(layer: Latent, store: Precision, name: str) -> int:
    if store.latent_bytes is None:
        return store.vector_bytes(layer.width)
    if store.latent_bytes == 0:
        raise SpecError(f"kv={name!r} cannot store a latent; take bf16, fp8 or fp8_ds_mla")
    if layer.width != _PACKED_LATENT:
        raise SpecError(
            f"kv={name!r} packs latents of {_PACKED_LATENT} elements; this model's have "
            f"{layer.width} (kv_lora_rank + qk_rope_head_dim); take bf16 or fp8"
        )
    return store.latent_bytes


def state_bytes(
    layer: Recurrent, tensor_parallel: int = 1, *, element: int = 2, is_state_fp32: bool = False,
    speculated: int = 0,
) -> int:  # fmt: skip
    """Bytes of a recurrent layer's state for one request, on one rank.

    Counts: the convolution's last inputs, (kernel - 1) x channels, and the state, heads x rows x
    columns. Groups that cannot be cut are repeated so that each rank has those of its heads.
    Ignores: copies that an engine keeps for prefix caching or speculation, beyond the
    convolution's extra steps.
    Error: none; a test compares it with vLLM's page sizes.
    Source: Dao & Gu 2024, arXiv:2405.21060; vLLM 0.32, layers/mamba/mamba_utils.py.

    Args:
        layer: the layer that keeps them.
        tensor_parallel: ranks.
        element: bytes of an element of the convolution's inputs.
        is_state_fp32: the engine keeps the state in 32 bits, whatever the model says.
        speculated: tokens that are proposed ahead and may be taken back.
    """
    groups = layer.groups
    if groups % tensor_parallel:
        groups += tensor_parallel - groups
    channels = (layer.channels + groups * layer.group_channels) // tensor_parallel
    state = layer.heads // tensor_parallel * layer.rows * layer.columns
    steps = layer.steps + (speculated if layer.kind != "mamba" else 0)
    state_element = 4 if is_state_fp32 or layer.is_state_fp32 else 2
    return channels * steps * element + state * state_element


def request_bytes(
    layer: Layer, context: int, precision: str = "bf16", tensor_parallel: int = 1,
    encoded: int | None = None,
) -> int:  # fmt: skip
    """The least that a layer must keep for a request of a context length, on one rank.

    Counts: token_bytes of each token that the layer still sees, or state_bytes.
    Ignores: rounding up to blocks, and tokens beyond a window that an engine has not freed yet.
    Error: none as a least; engines/ has what they charge.
    Source: that of token_bytes and state_bytes.

    Args:
        layer: the layer that keeps them.
        context: tokens read and written.
        precision: precision of keys and values.
        tensor_parallel: ranks.
        encoded: positions of the encoder's output; None: as many as the model's encoder gives.

    Raises:
        SpecError: a cross-attention layer's input has no length of its own and none is given.
    """
    if isinstance(layer, Recurrent):
        return state_bytes(layer, tensor_parallel)
    each = token_bytes(layer, precision, tensor_parallel)
    if isinstance(layer, Attention):
        bound = layer.window or layer.chunk or context
        return min(bound, context) * each
    if isinstance(layer, Cross):
        positions = layer.positions if encoded is None else encoded
        if positions is None:
            raise SpecError("the encoder takes inputs of any length; say how long they are")
        return positions * each
    return context * each
