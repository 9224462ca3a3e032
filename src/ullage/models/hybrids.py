"""Models with recurrent layers: Mamba, Mamba 2, and the hybrids that mix them with attention.

Source: the modeling and configuration files of transformers 5.19, and the state shapes of vLLM
0.32 (model_executor/layers/mamba/mamba_utils.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ullage.models.blocks import (
    Mlp,
    Shape,
    attention,
    heads_of,
    linear,
    make_model,
    mlp,
    norm,
    vocabulary,
)
from ullage.models.config import Config
from ullage.models.layers import Attention, Layer, Model, Part, Recurrent, Weight


def _mamba2_layer(config: Config, names: tuple[str, ...]) -> Recurrent:
    heads, head_dim, state, groups, conv = names
    count, width = config.number(heads, least=1), config.number(head_dim, least=1)
    size = config.number(state, least=1)
    return Recurrent(
        "mamba2",
        channels=count * width,
        steps=config.number(conv, default=4) - 1,
        group_channels=2 * size,
        groups=config.number(groups, default=1),
        heads=count,
        rows=width,
        columns=size,
    )


_HYBRID_NAMES: Final = (
    "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv",
)  # fmt: skip


def _mamba2_weights(layer: Recurrent, hidden: int, *, has_norm: bool = True) -> Iterator[Weight]:
    """A Mamba 2 mixer, with the bias of its convolution and none of its projections."""
    grouped = layer.groups * layer.group_channels
    conv_channels = layer.channels + grouped
    part = Part.RECURRENT
    yield linear(part, layer.channels + conv_channels + layer.heads, hidden, layer.heads)
    yield linear(part, hidden, layer.channels, layer.heads)
    yield Weight(
        part, conv_channels, layer.steps + 2, most_shards=layer.heads
    )  # the kernel, its bias
    yield Weight(part, layer.heads, count=3, most_shards=layer.heads)
    if has_norm:
        yield Weight(part, layer.channels, most_shards=layer.heads)


def _mamba1_layer(inner: int, state: int, steps: int) -> Recurrent:
    return Recurrent("mamba", channels=inner, steps=steps, heads=inner, rows=1, columns=state)


def _mamba1_weights(layer: Recurrent, hidden: int, rank: int) -> Iterator[Weight]:
    inner, part = layer.channels, Part.RECURRENT
    yield linear(part, 2 * inner, hidden, inner)
    yield linear(part, hidden, inner, inner)
    yield linear(part, rank + 2 * layer.columns, inner, inner)
    yield linear(part, inner, rank, inner)
    # The kernel and its bias; A; D and the bias of the time step.
    yield Weight(part, inner, layer.steps + 2 + layer.columns + 2, most_shards=inner)


def read_kinds(config: Config, count: int, allowed: set[str], *names: str) -> tuple[str, ...]:
    """The kind of each layer, as one of these fields lists them."""
    kinds = config.row(*names)
    if len(kinds) != count:
        raise config.wrong(
            names[0], f"found {len(kinds)} entries, expected num_hidden_layers={count}"
        )
    for kind in kinds:
        if kind not in allowed:
            raise config.wrong(names[0], f"found {kind!r}, expected {' or '.join(sorted(allowed))}")
    return tuple(kinds)


def attention_of(shape: Shape) -> Attention:
    """A layer that sees all tokens."""
    return Attention(shape.heads, shape.kv_heads, shape.head_dim)


def _mamba(config: Config, model_type: str) -> Model:
    hidden, layers = config.number("hidden_size", least=1), config.number("num_hidden_layers")
    inner = config.number(
        "intermediate_size", "d_inner", default=config.number("expand", default=2) * hidden
    )
    layer = _mamba1_layer(
        inner,
        config.number("state_size", default=16),
        config.number("conv_kernel", default=4) - 1,
    )
    rank_field = config.fields.get("time_step_rank", "auto")
    rank = -(-hidden // 16) if rank_field == "auto" else config.number("time_step_rank")
    weights = [*vocabulary(config, hidden, is_tied=True), norm(hidden)]
    for _ in range(layers):
        weights += [*_mamba1_weights(layer, hidden, rank), norm(hidden)]
    return make_model(config, model_type, [layer] * layers, weights, 2 * inner)


def _mamba2(config: Config, model_type: str) -> Model:
    hidden, layers = config.number("hidden_size", least=1), config.number("num_hidden_layers")
    names = ("num_heads", "head_dim", "state_size", "n_groups", "conv_kernel")
    layer = _mamba2_layer(config, names)
    if layer.channels != config.number("expand", default=2) * hidden:
        raise config.wrong(
            "num_heads", f"found {layer.heads} heads of {layer.rows}, expected expand x hidden_size"
        )
    weights = [*vocabulary(config, hidden, is_tied=False), norm(hidden)]
    for _ in range(layers):
        weights += [*_mamba2_weights(layer, hidden), norm(hidden)]
    widest = 2 * layer.channels + layer.groups * layer.group_channels + layer.heads
    return make_model(config, model_type, [layer] * layers, weights, widest)


def _granite(config: Config, model_type: str) -> Model:
    shape, count = heads_of(config), config.number("num_hidden_layers", least=1)
    names = {"mamba": "mamba", "linear_attention": "mamba"}
    names |= {"attention": "attention", "full_attention": "attention"}
    kinds = read_kinds(config, count, set(names), "layer_types", "layers_block_type")
    state = _mamba2_layer(config, _HYBRID_NAMES)
    experts = config.number("num_local_experts", default=8)
    shared = config.number("shared_intermediate_size", default=1024)
    sizes = Mlp(config.number("intermediate_size"), experts, shared)
    if not experts:
        sizes = Mlp(shared)
    has_bias = config.flag("attention_bias", default=False)
    weights = [*vocabulary(config, shape.hidden, is_tied=False), norm(shape.hidden)]
    layers: list[Layer] = []
    for kind in kinds:
        if names[kind] == "mamba":
            layers.append(state)
            weights += _mamba2_weights(state, shape.hidden)
        else:
            layers.append(attention_of(shape))
            weights += attention(shape, qkv_bias=has_bias, out_bias=has_bias)
        weights += [*mlp(shape.hidden, sizes), norm(shape.hidden, count=2)]
    widest = max(2 * sizes.width, 2 * state.channels)
    return make_model(config, model_type, layers, weights, widest)


def _bamba(config: Config, model_type: str) -> Model:
    shape, count = heads_of(config), config.number("num_hidden_layers", least=1)
    state = _mamba2_layer(config, _HYBRID_NAMES)
    attended = config.row("attn_layer_indices", default=())
    has_bias = config.flag("attention_bias", default=False)
    sizes = Mlp(config.number("intermediate_size"))
    weights = [*vocabulary(config, shape.hidden, is_tied=False), norm(shape.hidden)]
    layers: list[Layer] = []
    for index in range(count):
        if index in attended:
            layers.append(attention_of(shape))
            weights += attention(shape, qkv_bias=has_bias, out_bias=has_bias)
        else:
            layers.append(state)
            weights += _mamba2_weights(state, shape.hidden)
        weights += [*mlp(shape.hidden, sizes), norm(shape.hidden, count=2)]
    return make_model(config, model_type, layers, weights, max(2 * sizes.width, 2 * state.channels))


def _falcon_h1(config: Config, model_type: str) -> Model:
    """Every layer has attention and a state space side by side."""
    shape, count = heads_of(config), config.number("num_hidden_layers", least=1)
    state = _mamba2_layer(config, _HYBRID_NAMES)
    sizes = Mlp(config.number("intermediate_size"))
    has_bias = config.flag("attention_bias", default=False)
    has_norm = config.flag("mamba_rms_norm", default=False)
    weights = [*vocabulary(config, shape.hidden, is_tied=False), norm(shape.hidden)]
    for _ in range(count):
        weights += attention(shape, qkv_bias=has_bias, out_bias=has_bias)
        weights += _mamba2_weights(state, shape.hidden, has_norm=has_norm)
        weights += [*mlp(shape.hidden, sizes), norm(shape.hidden, count=2)]
    layers: list[Layer] = [attention_of(shape), state] * count
    return make_model(config, model_type, layers, weights, max(2 * sizes.width, 2 * state.channels))


_NEMOTRON_LETTERS: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def _nemotron_h(config: Config, model_type: str) -> Model:
    """A layer is one thing: a state space, attention, an MLP, or experts."""
    shape = heads_of(config, head_dim=128, kv_heads=8)
    names = {"linear_attention": "mamba", "full_attention": "attention"}
    if config.has("hybrid_override_pattern"):
        kinds = [_NEMOTRON_LETTERS[each] for each in config.text("hybrid_override_pattern")]
    else:
        kinds = [names.get(each, each) for each in config.row("layers_block_type")]
    fields = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel")
    state = _in_32_bits(config, _mamba2_layer(config, fields))
    has_bias = config.flag("attention_bias", default=False)
    weights = [*vocabulary(config, shape.hidden, is_tied=False), norm(shape.hidden)]
    layers: list[Layer] = []
    for kind in kinds:
        weights.append(norm(shape.hidden))
        if kind == "mamba":
            layers.append(state)
            weights += _mamba2_weights(state, shape.hidden)
        elif kind == "attention":
            layers.append(attention_of(shape))
            weights += attention(shape, qkv_bias=has_bias, out_bias=has_bias)
        else:
            sizes = _nemotron_sizes(config, kind)
            weights += mlp(shape.hidden, sizes, is_gated=False)
    widest = max(config.number("intermediate_size"), 2 * state.channels)
    return make_model(config, model_type, layers, weights, widest)


def _nemotron_sizes(config: Config, kind: str) -> Mlp:
    if kind == "mlp":
        return Mlp(config.number("intermediate_size"))
    if config.has("moe_latent_size"):
        raise config.wrong("moe_latent_size", "experts in a latent space are not known here")
    shared = config.number("moe_shared_expert_intermediate_size")
    shared *= config.number("n_shared_experts", default=1)
    return Mlp(config.number("moe_intermediate_size"), config.number("n_routed_experts"), shared)


def _in_32_bits(config: Config, state: Recurrent) -> Recurrent:
    dtype = config.text("mamba_ssm_cache_dtype", default="float32")
    return Recurrent(
        state.kind, state.channels, state.steps, state.group_channels, state.groups,
        state.heads, state.rows, state.columns, is_state_fp32=dtype == "float32",
    )  # fmt: skip


def _jamba(config: Config, model_type: str) -> Model:
    shape, count = heads_of(config, kv_heads=8), config.number("num_hidden_layers", least=1)
    expand = config.number("mamba_expand", default=2)
    state = _mamba1_layer(
        expand * shape.hidden,
        config.number("mamba_d_state", default=16),
        config.number("mamba_d_conv", default=4) - 1,
    )
    rank_field = config.fields.get("mamba_dt_rank", "auto")
    rank = -(-shape.hidden // 16) if rank_field == "auto" else config.number("mamba_dt_rank")
    attention_every = config.number("attn_layer_period", default=8, least=1)
    attention_first = config.number("attn_layer_offset", default=4)
    experts_every = config.number("expert_layer_period", default=2, least=1)
    experts_first = config.number("expert_layer_offset", default=1)
    experts = config.number("num_experts", default=16)
    width = config.number("intermediate_size")
    weights = [*vocabulary(config, shape.hidden, is_tied=False), norm(shape.hidden)]
    layers: list[Layer] = []
    for index in range(count):
        if index % attention_every == attention_first:
            layers.append(attention_of(shape))
            weights += attention(shape)
        else:
            layers.append(state)
            weights += _mamba1_weights(state, shape.hidden, rank)
            weights += [norm(rank), norm(state.columns, count=2)]
        sparse = experts > 1 and index % experts_every == experts_first
        weights += mlp(shape.hidden, Mlp(width, experts if sparse else 0))
        weights.append(norm(shape.hidden, count=2))
    return make_model(config, model_type, layers, weights, max(2 * width, 2 * state.channels))


def _lfm2(config: Config, model_type: str) -> Model:
    """Short convolutions among attention."""
    shape, count = heads_of(config, kv_heads=8), config.number("num_hidden_layers", least=1)
    full = config.row("full_attn_idxs", default=tuple(range(count)))
    kinds: tuple[str, ...] = tuple(
        "full_attention" if index in full else "conv" for index in range(count)
    )
    if config.has("layer_types"):
        kinds = read_kinds(config, count, {"conv", "full_attention"}, "layer_types")
    kernel = config.number("conv_L_cache", default=3)
    state = Recurrent("conv", channels=shape.hidden, steps=kernel - 1)
    width = _lfm2_width(config)
    weights = [*vocabulary(config, shape.hidden, is_tied=True), norm(shape.hidden)]
    layers: list[Layer] = []
    for kind in kinds:
        if kind == "conv":
            layers.append(state)
            weights += [linear(Part.RECURRENT, 3 * shape.hidden, shape.hidden, None)]
            weights += [linear(Part.RECURRENT, shape.hidden, shape.hidden, None)]
            weights += [Weight(Part.RECURRENT, shape.hidden, kernel)]
        else:
            layers.append(attention_of(shape))
            weights += [*attention(shape), norm(shape.head_dim, count=2)]
        weights += [*mlp(shape.hidden, Mlp(width)), norm(shape.hidden, count=2)]
    return make_model(config, model_type, layers, weights, max(2 * width, 3 * shape.hidden))


def _lfm2_width(config: Config) -> int:
    width: int = config.number("intermediate_size", "block_ff_dim")
    if not config.flag("block_auto_adjust_ff_dim", default=True):
        return width
    width = int(config.real("block_ffn_dim_multiplier", default=1.0) * (2 * width // 3))
    multiple = config.number("block_multiple_of", default=256, least=1)
    adjusted: int = multiple * -(-width // multiple)
    return adjusted


HYBRIDS: Final[dict[str, Callable[[Config, str], Model]]] = {
    "mamba": _mamba,
    "mamba2": _mamba2,
    "granitemoehybrid": _granite,
    "bamba": _bamba,
    "falcon_h1": _falcon_h1,
    "nemotron_h": _nemotron_h,
    "jamba": _jamba,
    "lfm2": _lfm2,
}
