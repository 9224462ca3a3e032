"""Decoders as differences from Llama: one row of a table for each.

Serving counts their weights from this table, and the architectures of players/eager/training are
built from it: defaults, biases, the kind of attention and the MLP of each layer are stated here
alone.

Source: the configuration and modeling files of transformers 5.19 to 5.23. A default is here only
where the configuration class of transformers has the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ullage.facts.families.blocks import (  # fmt: skip
    FULL,
    LINEAR,
    SLIDING,
    Block,
    Flag,
    Mlp,
    Shape,
    attend,
    mlp,
    norm,
    read_flag,
    read_kinds,
    split_heads,
)
from ullage.facts.families.config import Config
from ullage.facts.families.layers import Layer, Model, Part, Weight, merge

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


def _routed_experts(config: Config, index: int) -> Mlp:
    # DeepSeek, GLM: the first layers are dense, the others have shared experts beside routed.
    experts = config.number("n_routed_experts", default=0)
    kinds = config.row("mlp_layer_types", default=None)
    if kinds is None:
        is_dense = not experts or index < config.number("first_k_dense_replace")
    else:
        is_dense = kinds[index] == "dense"
    if is_dense or index % config.number("moe_layer_freq", default=1, least=1):
        return _dense(config, index)
    width = config.number("moe_intermediate_size")
    return Mlp(width, experts, width * config.number("n_shared_experts", default=0))


def _llama4_experts(config: Config, index: int) -> Mlp:
    step = config.number("interleave_moe_layer_step", default=1, least=1)
    usual = tuple(range(step - 1, config.number("num_hidden_layers"), step))
    width = config.number("intermediate_size")
    if index not in config.row("moe_layers", default=usual):
        return Mlp(config.number("intermediate_size_mlp"))
    return Mlp(width, config.number("num_local_experts", default=16), width)


def _four_fold(config: Config, index: int) -> Mlp:
    return Mlp(config.number("intermediate_size", default=4 * config.number("hidden_size")))


def _no_mlp(config: Config, index: int) -> Mlp:
    return Mlp(0)


def _granite_experts(config: Config, index: int) -> Mlp:
    # Granite 4: experts and the MLP beside them, or the MLP alone.
    experts, shared = config.number("num_local_experts"), config.number("shared_intermediate_size")
    return Mlp(config.number("intermediate_size"), experts, shared) if experts else Mlp(shared)


def _nemotron_sizes(config: Config, index: int) -> Mlp:
    kind = _nemotron_kinds(config)[index]
    if kind == "mlp":
        return _dense(config, index)
    if kind != "moe":
        return Mlp(0)
    if config.has("moe_latent_size"):
        raise config.wrong("moe_latent_size", "experts in a latent space are not known here")
    shared = config.number("moe_shared_expert_intermediate_size")
    shared *= config.number("n_shared_experts", default=1)
    return Mlp(config.number("moe_intermediate_size"), config.number("n_routed_experts"), shared)


def _jamba_experts(config: Config, index: int) -> Mlp:
    every = config.number("expert_layer_period", least=1)
    is_sparse = index % every == config.number("expert_layer_offset")
    experts = config.number("num_experts")
    return Mlp(config.number("intermediate_size"), experts if experts > 1 and is_sparse else 0)


def _lfm2_mlp(config: Config, index: int) -> Mlp:
    width: int = config.number("intermediate_size", "block_ff_dim")
    if config.flag("block_auto_adjust_ff_dim", default=True):
        width = int(config.real("block_ffn_dim_multiplier", default=1.0) * (2 * width // 3))
        multiple = config.number("block_multiple_of", default=256, least=1)
        width = multiple * -(-width // multiple)
    return Mlp(width)


def _mixed_kinds(config: Config, *fields: str, usual: Sequence[str]) -> tuple[str, ...]:
    # Layers of which some attend and others have a state, by either's names in configurations.
    names = {"mamba": LINEAR, "conv": LINEAR, LINEAR: LINEAR, "attention": FULL, FULL: FULL}
    kinds = read_kinds(config, len(usual), set(names), *fields, usual=tuple(usual))
    return tuple(names[kind] for kind in kinds)


def _count(config: Config) -> range:
    return range(config.number("num_hidden_layers", least=1))


def _state_kinds(config: Config) -> tuple[str, ...]:
    return (LINEAR,) * len(_count(config))


def _full_kinds(config: Config) -> tuple[str, ...]:
    return (FULL,) * len(_count(config))


def _granite_kinds(config: Config) -> tuple[str, ...]:
    return _mixed_kinds(
        config, "layer_types", "layers_block_type", usual=[LINEAR] * len(_count(config))
    )


def _delta_kinds(config: Config) -> tuple[str, ...]:
    every = config.number("full_attention_interval", default=4)
    usual = [LINEAR if (index + 1) % every else FULL for index in _count(config)]
    return _mixed_kinds(config, "layer_types", usual=usual)


def _bamba_kinds(config: Config) -> tuple[str, ...]:
    attended = config.row("attn_layer_indices", default=())
    return tuple(FULL if index in attended else LINEAR for index in _count(config))


def _jamba_kinds(config: Config) -> tuple[str, ...]:
    every, first = config.number("attn_layer_period", least=1), config.number("attn_layer_offset")
    return tuple(FULL if index % every == first else LINEAR for index in _count(config))


def _lfm2_kinds(config: Config) -> tuple[str, ...]:
    full = config.row("full_attn_idxs", default=tuple(_count(config)))
    usual = [FULL if index in full else LINEAR for index in _count(config)]
    return _mixed_kinds(config, "layer_types", usual=usual)


_NEMOTRON_KINDS: Final = {
    "M": LINEAR, "*": FULL, "-": "mlp", "E": "moe", "mamba": LINEAR, "attention": FULL,
}  # fmt: skip


def _nemotron_kinds(config: Config) -> tuple[str, ...]:
    # A layer is one thing: a state space, attention, an MLP, or experts.
    if config.has("hybrid_override_pattern"):
        marks: Sequence[str] = config.text("hybrid_override_pattern")
    else:
        marks = config.row("layers_block_type", "layer_types")
    return tuple(_NEMOTRON_KINDS.get(mark, mark) for mark in marks)


def _all_heads(config: Config) -> int:
    return int(config.number("num_attention_heads"))


def _falcon_kv_heads(config: Config) -> int:
    heads: int = config.number("num_attention_heads")
    if config.flag("new_decoder_architecture", default=False):
        return int(config.number("num_kv_heads", default=heads))
    return 1 if config.flag("multi_query", default=True) else heads


def _falcon_norms(config: Config) -> int:
    if config.flag("new_decoder_architecture", default=False):
        return int(config.number("num_ln_in_parallel_attn", default=2))
    if not config.flag("parallel_attn", default=True):
        return 2
    return int(config.number("num_ln_in_parallel_attn", default=1))


@dataclass(frozen=True, slots=True)
class Style:
    """The differences of an architecture from Llama.

    Attributes:
        head_dim: transformers' default; None: hidden / heads.
        kv_heads: the same; None: as many as heads; a function: as it says, whatever
            num_key_value_heads does, and the heads share the hidden size out.
        is_tied: the output head is the embedding.
        qkv_bias: query, key and value projections have a bias.
        out_bias: the output projection has a bias.
        mlp_bias: the MLP has a bias.
        is_gated: the MLP has three matrices, not two.
        norms: normalisations of each layer.
        norm_bias: the norms are LayerNorms with a bias.
        positions: rows of a table of positions beyond max_position_embeddings; None: there is none.
        qk_norm: norms of queries and keys: "head" (one for all heads), "each" (one for each head),
            "width" (over all heads together) or "" (none).
        qk_norm_flag: the field that turns these norms on; "": they are always on.
        window: the default of sliding_window; None: there is no default.
        switch: the field that turns the window on; "": it is always on.
        pattern: N where every Nth layer uses full attention, unless layer_types says otherwise;
            0: no layer does.
        kinds: what each layer looks back with, where windows do not say it.
        sizes: widths of a layer's MLP or experts.
    """

    head_dim: int | None = None
    kv_heads: int | Callable[[Config], int] | None = None
    is_tied: bool = False
    qkv_bias: Flag = False
    out_bias: Flag = False
    mlp_bias: Flag = False
    is_gated: bool = True
    norms: int | Callable[[Config], int] = 2
    norm_bias: bool = False
    positions: int | None = None
    qk_norm: str = ""
    qk_norm_flag: str = ""
    window: int | None = None
    switch: str = ""
    pattern: int = 0
    kinds: Callable[[Config], tuple[str, ...]] | None = None
    sizes: Callable[[Config, int], Mlp] = _dense


_BIAS: Final = ("attention_bias", False)
_BIAS_ON: Final = ("attention_bias", True)
_OPT_BIAS: Final = ("enable_bias", True)
_FALCON_BIAS: Final = ("bias", False)
_OLDER: Final = Style(
    kv_heads=_all_heads, qkv_bias=True, out_bias=True, mlp_bias=True, is_gated=False,
    norm_bias=True, kinds=_full_kinds,
)  # fmt: skip

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
        sizes=_routed_experts,
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
    "gpt2": replace(_OLDER, is_tied=True, positions=0, sizes=_four_fold),
    "gpt_neox": replace(_OLDER, qkv_bias=_BIAS_ON, out_bias=_BIAS_ON),
    "opt": replace(  # the first two positions stand for padding
        _OLDER, is_tied=True, qkv_bias=_OPT_BIAS, out_bias=_OPT_BIAS, mlp_bias=_OPT_BIAS,
        positions=2,
    ),
    "falcon": replace(
        _OLDER, kv_heads=_falcon_kv_heads, is_tied=True, qkv_bias=_FALCON_BIAS,
        out_bias=_FALCON_BIAS, mlp_bias=_FALCON_BIAS, norms=_falcon_norms, sizes=_four_fold,
    ),
}  # fmt: skip

# Decoders whose mixers have a reader of their own (latents.py, hybrids.py, gemma3n.py, gemma4.py).
_OTHER: Final = Style(qkv_bias=_BIAS, out_bias=_BIAS)
_MLP_BIAS: Final = replace(_OTHER, mlp_bias=("mlp_bias", False))
_DELTA: Final = replace(
    _OTHER, head_dim=256, kv_heads=2, qk_norm="head", kinds=_delta_kinds, sizes=_qwen_experts
)
_GEMMA: Final = replace(_OTHER, head_dim=256, kv_heads=2, is_tied=True, norms=4, window=512)
LATENT_TYPES: Final = (
    "deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "deepseek_v32", "glm_moe_dsa",
)  # fmt: skip
_OTHERS: Final = {
    "qwen3_next": _DELTA,
    "qwen3_5_text": replace(_DELTA, kv_heads=4, sizes=_dense),
    "qwen3_5_moe_text": _DELTA,
    **dict.fromkeys(LATENT_TYPES, replace(_OTHER, sizes=_routed_experts)),
    "gemma3n_text": _GEMMA,
    "gemma4_text": replace(_GEMMA, kv_heads=4),
    "mamba": Style(is_tied=True, norms=1, kinds=_state_kinds, sizes=_no_mlp),
    "mamba2": Style(norms=1, kinds=_state_kinds, sizes=_no_mlp),
    "granitemoehybrid": replace(_OTHER, kinds=_granite_kinds, sizes=_granite_experts),
    "bamba": replace(_MLP_BIAS, kinds=_bamba_kinds),
    "falcon_h1": replace(_MLP_BIAS, kinds=_full_kinds),
    "nemotron_h": Style(
        head_dim=128, kv_heads=8, mlp_bias=("mlp_bias", False), is_gated=False, norms=1,
        kinds=_nemotron_kinds, sizes=_nemotron_sizes,
    ),
    "jamba": Style(kv_heads=8, kinds=_jamba_kinds, sizes=_jamba_experts),
    "lfm2": Style(
        kv_heads=8, is_tied=True, qk_norm="head", kinds=_lfm2_kinds, sizes=_lfm2_mlp
    ),
}  # fmt: skip


def find_style(model_type: str) -> Style:
    """The differences of a decoder from Llama."""
    return STYLES.get(model_type) or _OTHERS.get(model_type, _OTHER)


def attention_shape(config: Config) -> Shape:
    """Heads and their width; fields that are not there have the defaults of transformers.

    Raises:
        SpecError: heads divide neither the hidden size nor the key and value heads.
    """
    style = find_style(config.model_type)
    hidden = config.number("hidden_size", least=1)
    heads = config.number("num_attention_heads", least=1)
    if callable(style.kv_heads):
        return split_heads(config, hidden, heads, style.kv_heads(config))
    kv = config.number("num_key_value_heads", default=style.kv_heads or heads, least=1)
    width = config.number("head_dim", default=style.head_dim, least=1)
    if heads % kv:
        raise config.wrong(
            "num_key_value_heads", f"found {kv}, expected a divisor of num_attention_heads={heads}"
        )
    if width is None:
        if hidden % heads:
            raise config.wrong(
                "hidden_size",
                f"found {hidden}, expected a multiple of num_attention_heads={heads}; where they "
                f"are not related, add head_dim",
            )
        width = hidden // heads
    return Shape(hidden, heads, kv, width)


def read_decoder(config: Config) -> Model:
    """The cache and weights of a decoder of the table."""
    style, shape = STYLES[config.model_type], attention_shape(config)
    kinds = layer_kinds(config)
    window = _window(config, style) if SLIDING in kinds else None
    chunk = config.number("attention_chunk_size", default=8192) if CHUNKED in kinds else None
    (layer,), own = attend(
        shape, *beside_attention(config, shape),
        qkv_bias=read_flag(config, style.qkv_bias), out_bias=read_flag(config, style.out_bias),
    )  # fmt: skip
    by_kind = {SLIDING: replace(layer, window=window), CHUNKED: replace(layer, chunk=chunk)}
    blocks: list[Block] = [((by_kind.get(kind, layer),), own) for kind in kinds]
    widest = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    return stack(config, blocks, *_beside_layers(config, style, shape), widest=widest)


def stack(
    config: Config, blocks: Sequence[Block], *more: Weight, widest: int,
    sizes: Sequence[Mlp] | None = None,
) -> Model:  # fmt: skip
    """A model of mixers in order, each with the MLP or the experts of its layer.

    more: weights beside the layers. widest: the most elements that a mixer computes for a token.
    sizes: of each layer's MLP; None: the family's.
    """
    style, model_type = find_style(config.model_type), config.model_type
    hidden, vocab = config.number("hidden_size", least=1), config.number("vocab_size", least=1)
    outer = embedding_width(config)
    weights = [Weight(Part.EMBEDDING, vocab, outer), *more]
    if not config.flag("tie_word_embeddings", default=style.is_tied):
        weights.append(Weight(Part.HEAD, vocab, outer))
    if has_final_norm(config):
        weights.append(norm(hidden, has_bias=style.norm_bias))
    is_biased = model_type == "gpt_oss"  # experts and what chooses them
    norms = style.norms(config) if callable(style.norms) else style.norms
    if sizes is None:
        sizes = [style.sizes(config, index) for index in range(len(blocks))]
    has_experts = any(size.experts for size in sizes)
    layers: list[Layer] = []
    for size, (cached, own) in zip(sizes, blocks, strict=True):
        layers += cached
        weights += [*own, norm(hidden, has_bias=style.norm_bias, count=norms)]
        weights += mlp(
            hidden, size, is_gated=style.is_gated,
            has_bias=read_flag(config, style.mlp_bias) and (is_biased or not size.experts),
            has_router_bias=is_biased,
        )  # fmt: skip
        widest = max(widest, (1 + style.is_gated) * max(size.width, size.shared))
    return Model(
        model_type, hidden, vocab, widest, tuple(layers), merge(weights),
        top_experts=config.number("num_experts_per_tok", default=0) if has_experts else 0,
        context=config.number("max_position_embeddings", default=None),
    )  # fmt: skip


def embedding_width(config: Config) -> int:
    """Elements of an embedded word; of OPT it may be narrower than the layers."""
    name = "word_embed_proj_dim" if config.model_type == "opt" else "hidden_size"
    return int(config.number(name, default=config.number("hidden_size")))


def has_final_norm(config: Config) -> bool:
    """A norm stands behind the last layer; of OPT it may be in the layers alone."""
    is_before = config.flag("do_layer_norm_before", default=True)
    return bool(is_before and not config.flag("_remove_final_layer_norm", default=False))


def find_qk_norm(config: Config) -> str:
    """The norms of queries and keys, as in Style; "": there are none."""
    style = find_style(config.model_type)
    flag = (style.qk_norm_flag, False) if style.qk_norm_flag else True
    return style.qk_norm if read_flag(config, flag) else ""


def beside_attention(config: Config, shape: Shape) -> Iterator[Weight]:
    """Weights of attention beside its projections."""
    if config.model_type == "gpt_oss":  # each head has a place to attend to that is not a token
        yield Weight(Part.ATTENTION, shape.heads, most_shards=shape.heads)
    normed = find_qk_norm(config)
    if normed == "head":
        bias = find_style(config.model_type).norm_bias
        yield norm(shape.head_dim, count=2, has_bias=bias)
    elif normed:
        yield norm(shape.heads * shape.head_dim)
        yield norm(shape.kv_heads * shape.head_dim)


def _beside_layers(config: Config, style: Style, shape: Shape) -> Iterator[Weight]:
    if style.positions is not None:
        rows = config.number("max_position_embeddings") + style.positions
        yield Weight(Part.EMBEDDING, rows, shape.hidden, most_shards=1)
    outer = embedding_width(config)
    if outer != shape.hidden:
        yield Weight(Part.EMBEDDING, shape.hidden, outer, count=2, most_shards=1)
    if config.model_type == "phi":
        yield Weight(Part.HEAD, config.number("vocab_size"))


def _window(config: Config, style: Style) -> int:
    window: int = config.number("sliding_window", default=style.window, least=1)
    if window is None:
        raise config.wrong(
            "sliding_window", "it is missing, and layer_types has sliding layers; add it"
        )
    if config.flag("use_bidirectional_attention", default=False):
        window = window // 2 + 1
    return window


def layer_kinds(config: Config) -> tuple[str, ...]:
    """The kind of each layer: "full_attention", "sliding_attention" or "chunked_attention", or
    "linear_attention" where it keeps a state.

    Raises:
        SpecError: layer_types has another length than there are layers, or an unknown kind.
    """
    model_type = config.model_type
    style = find_style(model_type)
    if style.kinds is not None:
        return style.kinds(config)
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
