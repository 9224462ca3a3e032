"""Models with recurrent layers: Mamba, Mamba 2, gated delta nets (Qwen3-Next, Qwen3.5), and the
hybrids that mix them with attention; layers that predict several tokens (MTP) are not loaded.

Source: the modeling and configuration files of transformers 5.19 to 5.23, and the state shapes of
vLLM 0.32 (model_executor/layers/mamba/mamba_utils.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ullage.facts.families.blocks import FULL, LINEAR, Block, attend, linear, norm, read_flag
from ullage.facts.families.config import Config
from ullage.facts.families.decoders import (
    attention_shape,
    beside_attention,
    find_style,
    layer_kinds,
    stack,
)
from ullage.facts.families.layers import Model, Part, Recurrent, Weight


def mamba2_state(config: Config) -> Recurrent:
    """The state of a Mamba 2 mixer.

    Raises:
        SpecError: heads and their width disagree with the width that they share out.
    """
    count, size = config.number("mamba_n_heads", least=1), config.number("mamba_d_state", least=1)
    inner = config.number("mamba_d_ssm", default=None)
    if inner is None and config.has("mamba_expand"):
        inner = int(config.real("mamba_expand") * config.number("hidden_size"))
    if inner is not None and config.fields.get("mamba_d_head", "auto") in (None, "auto"):
        width = inner // count
    else:
        width = config.number("mamba_d_head", least=1)
    if inner not in (None, count * width):
        raise config.wrong(
            "mamba_n_heads",
            f"found {count} heads of {width}, expected {inner} together: expand x hidden_size",
        )
    steps, groups = config.number("mamba_d_conv") - 1, config.number("mamba_n_groups")
    is_fp32 = config.fields.get("mamba_ssm_cache_dtype") == "float32"
    return Recurrent("mamba2", count * width, steps, 2 * size, groups, count, width, size, is_fp32)


def _mamba2(config: Config) -> Block:
    layer, hidden, part = mamba2_state(config), config.number("hidden_size"), Part.RECURRENT
    projected = layer.channels + layer.convolved + layer.heads
    kernel = layer.steps + 1 + config.flag("mamba_conv_bias", default=True)
    weights = [
        linear(part, projected, hidden, layer.heads),
        linear(part, hidden, layer.channels, layer.heads),
        Weight(part, layer.convolved, kernel, most_shards=layer.heads),
        Weight(part, layer.heads, count=3, most_shards=layer.heads),
    ]
    if config.flag("mamba_proj_bias", default=False):
        weights.append(Weight(part, projected + hidden, most_shards=1))
    if config.model_type != "falcon_h1" or config.flag("mamba_rms_norm", default=False):
        weights.append(Weight(part, layer.channels, most_shards=layer.heads))
    return (layer,), tuple(weights)


def _mamba1(config: Config) -> Block:
    hidden, part = config.number("hidden_size", least=1), Part.RECURRENT
    inner = config.number("d_inner", default=config.number("mamba_expand") * hidden)
    state, steps = config.number("mamba_d_state"), config.number("mamba_d_conv") - 1
    is_auto = config.fields.get("mamba_dt_rank", "auto") == "auto"
    width = -(-hidden // 16) if is_auto else config.number("mamba_dt_rank")
    layer = Recurrent("mamba", channels=inner, steps=steps, heads=inner, rows=1, columns=state)
    weights = [
        linear(part, 2 * inner, hidden, inner),
        linear(part, hidden, inner, inner),
        linear(part, width + 2 * state, inner, inner),
        linear(part, inner, width, inner),
        # The kernel and its bias; A; D and the bias of the time step.
        Weight(part, inner, steps + 2 + state + 2, most_shards=inner),
    ]
    if config.model_type == "jamba":
        weights += [norm(width), norm(state, count=2)]
    return (layer,), tuple(weights)


def _short_convolution(config: Config) -> Block:
    kernel, hidden = config.number("conv_L_cache", default=3), config.number("hidden_size")
    part = Part.RECURRENT
    projections = linear(part, 3 * hidden, hidden, None), linear(part, hidden, hidden, None)
    state = Recurrent("conv", channels=hidden, steps=kernel - 1)
    return (state,), (*projections, Weight(part, hidden, kernel))


def delta_net(config: Config) -> Recurrent:
    """The state of a gated delta net."""
    keys, values = config.number("linear_num_key_heads"), config.number("linear_num_value_heads")
    key, value = (config.number(f"linear_{name}_head_dim") for name in ("key", "value"))
    channels = 2 * keys * key + values * value
    steps = config.number("linear_conv_kernel_dim") - 1
    return Recurrent("delta", channels, steps, heads=values, rows=value, columns=key)


def _delta_net(config: Config) -> Block:
    state, hidden, part = delta_net(config), config.number("hidden_size"), Part.RECURRENT
    heads, values = state.heads, state.heads * state.rows
    return (state,), (
        linear(part, state.channels + values, hidden, heads),
        linear(part, 2 * heads, hidden, heads),
        linear(part, hidden, values, heads),
        Weight(part, state.channels, state.steps + 1, most_shards=heads),
        Weight(part, heads, count=2, most_shards=heads),
        norm(state.rows),
    )


def _attend(config: Config) -> Block:
    """Attention of a hybrid, with what it has besides."""
    shape, style = attention_shape(config), find_style(config.model_type)
    has_bias = read_flag(config, style.qkv_bias)
    more = [*beside_attention(config, shape)]
    if config.model_type.startswith("qwen3"):  # queries have a gate
        wide = shape.heads * shape.head_dim
        gate = linear(Part.ATTENTION, wide, shape.hidden, shape.heads)
        bias = Weight(Part.ATTENTION, wide, count=has_bias, most_shards=shape.heads)
        more += [gate, bias]
    return attend(shape, *more, qkv_bias=has_bias, out_bias=has_bias)


_MIXERS: Final[Mapping[str, Callable[[Config], Block]]] = {
    "mamba": _mamba1,
    **dict.fromkeys(("mamba2", "granitemoehybrid", "bamba", "nemotron_h", "falcon_h1"), _mamba2),
    "jamba": _mamba1,
    "lfm2": _short_convolution,
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _delta_net),
}
HYBRIDS: Final = tuple(_MIXERS)


def read_hybrid(config: Config) -> Model:
    """The cache and weights of a model with recurrent layers."""
    mixer, kinds = _MIXERS[config.model_type](config), layer_kinds(config)
    full: Block = _attend(config) if FULL in kinds else ((), ())
    if config.model_type == "falcon_h1":  # attention and a state space side by side
        full = (*full[0], *mixer[0]), (*full[1], *mixer[1])
    blocks = {LINEAR: mixer, FULL: full}
    widest = max(weight.out for weight in mixer[1] if weight.is_linear)
    if config.model_type.startswith("qwen3"):  # the joined channels and what the convolution makes
        shape = attention_shape(config)
        widest = 2 * max(shape.heads * shape.head_dim, delta_net(config).channels)
    return stack(config, [blocks.get(kind, ((), ())) for kind in kinds], widest=widest)
