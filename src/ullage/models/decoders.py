"""Decoders that are Llama with differences: one row of a table for each.

Serving counts their weights from this table, and the architectures of estimate/training are built
from it: defaults, biases and the kind of attention of each layer are stated here alone.

Source: the configuration and modeling files of transformers 5.19 to 5.23. A default is here only
where the configuration class of transformers has the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from ullage.models.blocks import (
    FULL,
    SLIDING,
    Flag,
    Mlp,
    Shape,
    attention,
    heads_of,
    make_model,
    mlp,
    norm,
    read_flag,
    read_kinds,
    vocabulary,
)  # fmt: skip
from ullage.models.config import Config
from ullage.models.layers import Attention, Layer, Model, Part, Weight

CHUNKED: Final = "chunked_attention"


def _dense(config: Config, _: int) -> Mlp:
    return Mlp(config.number("intermediate_size", least=1))


def _local_experts(config: Config, _: int) -> Mlp:
    # Mixtral, Granite, gpt-oss: experts in every layer, each as wide as a dense MLP would be.
    return Mlp(config.number("intermediate_size"), config.number("num_local_experts", least=1))


def _qwen_experts(config: Config, index: int) -> Mlp:
    step = config.number("decoder_sparse_step", default=1, least=1)
    dense = index in config.row("mlp_only_layers", default=()) or (index + 1) % step
    experts = config.number("num_experts", "num_local_experts")
    if dense or not experts:
        return _dense(config, index)
    shared = config.number("shared_expert_intermediate_size", default=0)
    return Mlp(config.number("moe_intermediate_size"), experts, shared, bool(shared))


def _deepseek_experts(config: Config, index: int) -> Mlp:
    # DeepSeek, GLM: the first layers are dense, the others have shared experts beside routed.
    if not config.has("n_routed_experts") or index < config.number("first_k_dense_replace"):
        return _dense(config, index)
    width = config.number("moe_intermediate_size")
    shared = width * config.number("n_shared_experts", default=0)
    return Mlp(width, config.number("n_routed_experts"), shared)


def _llama4_experts(config: Config, index: int) -> Mlp:
    step = config.number("interleave_moe_layer_step", default=1, least=1)
    usual = tuple(range(step - 1, config.number("num_hidden_layers"), step))
    width = config.number("intermediate_size")
    if index not in config.row("moe_layers", default=usual):
        return Mlp(config.number("intermediate_size_mlp"))
    return Mlp(width, config.number("num_local_experts", default=16), width)


@dataclass(frozen=True, slots=True)
class Style:
    """The differences of an architecture from Llama.

    Attributes:
        head_dim: transformers' default; None: hidden / heads.
        kv_heads: the same; None: as many as heads.
        is_tied: the output head is the embedding.
        qkv_bias: query, key and value projections have a bias.
        out_bias: the output projection has a bias.
        mlp_bias: the MLP has a bias.
        is_gated: the MLP has three matrices, not two.
        norms: normalisations of each layer.
        norm_bias: the norms are LayerNorms with a bias.
        qk_norm: norms of queries and keys: "head" (one for all heads), "each" (one for each head),
            "width" (over all heads together) or "" (none).
        qk_norm_flag: the field that turns these norms on; "": they are always on.
        window: the default of sliding_window; None: there is no default.
        switch: the field that turns the window on; "": it is always on.
        pattern: N where every Nth layer uses full attention, unless layer_types says otherwise;
            0: no layer does.
        sizes: widths of a layer's MLP or experts.
    """

    head_dim: int | None = None
    kv_heads: int | None = None
    is_tied: bool = False
    qkv_bias: Flag = False
    out_bias: Flag = False
    mlp_bias: Flag = False
    is_gated: bool = True
    norms: int = 2
    norm_bias: bool = False
    qk_norm: str = ""
    qk_norm_flag: str = ""
    window: int | None = None
    switch: str = ""
    pattern: int = 0
    sizes: Callable[[Config, int], Mlp] = _dense


_BIAS: Final = ("attention_bias", False)
_BIAS_ON: Final = ("attention_bias", True)

STYLES: Final = {
    "llama": Style(mlp_bias=("mlp_bias", False), qkv_bias=_BIAS, out_bias=_BIAS),
    "mistral": Style(kv_heads=8, window=4096),
    "ministral3": Style(head_dim=128, kv_heads=8),
    "mixtral": Style(kv_heads=8, sizes=_local_experts),
    "qwen2": Style(kv_heads=32, qkv_bias=True, switch="use_sliding_window"),
    "qwen2_moe": Style(
        kv_heads=16, qkv_bias=("qkv_bias", True), switch="use_sliding_window", sizes=_qwen_experts
    ),
    "qwen3": Style(
        head_dim=128, kv_heads=32, qkv_bias=_BIAS, out_bias=_BIAS, qk_norm="head",
        switch="use_sliding_window",
    ),
    "qwen3_moe": Style(
        kv_heads=4, qkv_bias=_BIAS, out_bias=_BIAS, qk_norm="head", switch="use_sliding_window",
        sizes=_qwen_experts,
    ),
    "gemma": Style(head_dim=256, kv_heads=16, is_tied=True, qkv_bias=_BIAS, out_bias=_BIAS),
    "gemma2": Style(
        head_dim=256, kv_heads=4, is_tied=True, qkv_bias=_BIAS, out_bias=_BIAS, norms=4,
        window=4096, pattern=2,
    ),
    "gemma3_text": Style(
        head_dim=256, kv_heads=4, is_tied=True, qkv_bias=_BIAS, out_bias=_BIAS, norms=4,
        qk_norm="head", window=4096, pattern=6,
    ),
    "phi": Style(
        qkv_bias=True, out_bias=True, mlp_bias=True, is_gated=False, norms=1, norm_bias=True,
        qk_norm="head", qk_norm_flag="qk_layernorm",
    ),
    "phi3": Style(),
    "granite": Style(mlp_bias=("mlp_bias", False), qkv_bias=_BIAS, out_bias=_BIAS),
    "granitemoe": Style(qkv_bias=_BIAS, out_bias=_BIAS, sizes=_local_experts),
    "olmo2": Style(qkv_bias=_BIAS, out_bias=_BIAS, qk_norm="width"),
    "olmo3": Style(qkv_bias=_BIAS, out_bias=_BIAS, qk_norm="width", window=4096, pattern=4),
    "cohere": Style(
        is_tied=True, qkv_bias=_BIAS, out_bias=_BIAS, norms=1, qk_norm="each",
        qk_norm_flag="use_qk_norm",
    ),
    "cohere2": Style(
        is_tied=True, qkv_bias=_BIAS, out_bias=_BIAS, norms=1, window=4096, pattern=4
    ),
    "exaone4": Style(qk_norm="head", window=4096, pattern=4),
    "smollm3": Style(
        kv_heads=4, is_tied=True, qkv_bias=_BIAS, out_bias=_BIAS,
        mlp_bias=("mlp_bias", False), switch="use_sliding_window",
    ),
    "stablelm": Style(
        qkv_bias=("use_qkv_bias", False), norm_bias=True, qk_norm="each",
        qk_norm_flag="qk_layernorm",
    ),
    "starcoder2": Style(
        kv_heads=2, is_tied=True, qkv_bias=("use_bias", True), out_bias=("use_bias", True),
        mlp_bias=("use_bias", True), is_gated=False, norm_bias=True,
    ),
    "glm4": Style(head_dim=128, kv_heads=2, qkv_bias=_BIAS_ON, norms=4),
    "glm4_moe": Style(
        kv_heads=8, qkv_bias=_BIAS, qk_norm="head", qk_norm_flag="use_qk_norm",
        sizes=_deepseek_experts,
    ),
    "ernie4_5": Style(
        head_dim=128, kv_heads=2, is_tied=True, qkv_bias=("use_bias", False),
        out_bias=("use_bias", False), mlp_bias=("use_bias", False),
    ),
    "seed_oss": Style(
        head_dim=128, kv_heads=8, qkv_bias=_BIAS_ON, out_bias=("attention_out_bias", False),
        mlp_bias=("mlp_bias", False),
    ),
    "hunyuan_v1_dense": Style(qkv_bias=_BIAS, out_bias=_BIAS, qk_norm="head"),
    "gpt_oss": Style(
        head_dim=64, kv_heads=8, qkv_bias=_BIAS_ON, out_bias=_BIAS_ON, mlp_bias=True, window=128,
        pattern=2, sizes=_local_experts,
    ),
    "llama4_text": Style(
        head_dim=128, kv_heads=8, qkv_bias=_BIAS, out_bias=_BIAS, pattern=4,
        sizes=_llama4_experts,
    ),
}  # fmt: skip

# Decoders with a reader of their own (latents.py, hybrids.py), whose attention and MLP are Llama's.
_OTHER: Final = Style(qkv_bias=_BIAS, out_bias=_BIAS, mlp_bias=("mlp_bias", False))
_OTHERS: Final = {
    "nemotron_h": replace(_OTHER, head_dim=128, kv_heads=8),
    **dict.fromkeys(("gemma3n_text", "gemma4_text"), replace(_OTHER, is_tied=True, window=512)),
}


def find_style(model_type: str) -> Style:
    """The differences of a decoder from Llama."""
    return STYLES.get(model_type) or _OTHERS.get(model_type, _OTHER)


def attention_shape(config: Config, model_type: str) -> Shape:
    """Heads and their width; fields that are not there have the defaults of transformers."""
    style = find_style(model_type)
    return heads_of(config, head_dim=style.head_dim, kv_heads=style.kv_heads)


# Published configurations leave these out.
_LEFT_OUT: Final = {"gemma3_text": {"num_attention_heads": 8, "vocab_size": 262_208}}


def with_defaults(config: Config, model_type: str) -> Config:
    """The configuration with the fields that published ones leave to transformers' defaults."""
    return replace(config, fields={**_LEFT_OUT.get(model_type, {}), **config.fields})


def read_decoder(config: Config, model_type: str) -> Model:
    """Reads what a decoder of the table keeps and weighs."""
    config = with_defaults(config, model_type)
    style = STYLES[model_type]
    shape = attention_shape(config, model_type)
    kinds = layer_kinds(config, model_type)
    sizes = [style.sizes(config, index) for index in range(len(kinds))]
    window = _window(config, style) if SLIDING in kinds else None
    chunk = config.number("attention_chunk_size", default=8192) if CHUNKED in kinds else None
    layers: list[Layer] = [
        Attention(
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            window=window if kind == SLIDING else None,
            chunk=chunk if kind == CHUNKED else None,
        )
        for kind in kinds
    ]
    weights = [*vocabulary(config, shape.hidden, is_tied=style.is_tied)]
    weights += [norm(shape.hidden, has_bias=style.norm_bias)]
    for size in sizes:
        weights += _block(config, model_type, shape, size)
    if model_type == "phi":
        weights.append(Weight(Part.HEAD, config.number("vocab_size")))
    return make_model(config, model_type, layers, weights, _widest(shape, sizes))


def _widest(shape: Shape, sizes: list[Mlp]) -> int:
    attended = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    return max(attended, *(2 * max(size.width, size.shared) for size in sizes))


def _block(config: Config, model_type: str, shape: Shape, sizes: Mlp) -> Iterator[Weight]:
    style = STYLES[model_type]
    yield from attention(
        shape,
        qkv_bias=read_flag(config, style.qkv_bias),
        out_bias=read_flag(config, style.out_bias),
    )
    yield from _qk_norms(config, style, shape)
    if model_type == "gpt_oss":  # each head has a place to attend to that is not a token
        yield Weight(Part.ATTENTION, shape.heads, most_shards=shape.heads)
    yield from mlp(
        shape.hidden, sizes, is_gated=style.is_gated, has_bias=read_flag(config, style.mlp_bias),
        has_router_bias=model_type == "gpt_oss",
    )  # fmt: skip
    yield norm(shape.hidden, has_bias=style.norm_bias, count=style.norms)


def _qk_norms(config: Config, style: Style, shape: Shape) -> Iterator[Weight]:
    if not style.qk_norm or not read_flag(
        config, (style.qk_norm_flag, False) if style.qk_norm_flag else True
    ):
        return
    if style.qk_norm == "head":
        yield norm(shape.head_dim, count=2, has_bias=style.norm_bias)
    else:
        yield norm(shape.heads * shape.head_dim)
        yield norm(shape.kv_heads * shape.head_dim)


def _window(config: Config, style: Style) -> int:
    window: int = config.number("sliding_window", default=style.window, least=1)
    if window is None:
        raise config.wrong(
            "sliding_window", "it is missing, and layer_types has sliding layers; add it"
        )
    if config.flag("use_bidirectional_attention", default=False):
        window = window // 2 + 1
    return window


def layer_kinds(config: Config, model_type: str) -> tuple[str, ...]:
    """The kind of each layer: "full_attention", "sliding_attention" or "chunked_attention".

    Raises:
        SpecError: layer_types has another length than there are layers, or an unknown kind.
    """
    style = STYLES[model_type]
    count: int = config.number("num_hidden_layers", least=1)
    if config.has("layer_types"):
        return read_kinds(config, count, {FULL, SLIDING, CHUNKED}, "layer_types")
    if model_type == "llama4_text":
        every = config.number("no_rope_layer_interval", default=4, least=1)
        usual = tuple(int((index + 1) % every != 0) for index in range(count))
        rows: tuple[int, ...] = config.row("no_rope_layers", default=()) or usual
        return tuple(CHUNKED if row else FULL for row in rows)
    if not _has_window(config, style):
        return (FULL,) * count
    if style.switch:
        first = config.number("max_window_layers", default=28)
        return tuple(SLIDING if index >= first else FULL for index in range(count))
    every = config.number(
        "sliding_window_pattern", "_sliding_window_pattern", default=style.pattern
    )
    return tuple(SLIDING if not every or (index + 1) % every else FULL for index in range(count))


def _has_window(config: Config, style: Style) -> bool:
    if style.switch and not config.flag(style.switch, default=False):
        return False
    if "sliding_window" in config.fields:  # null says that there is none
        return bool(config.number("sliding_window", default=0))
    return bool(style.window)
