"""Models with recurrent layers: Mamba, Mamba 2, and the hybrids that mix them with attention.

Source: the modeling and configuration files of transformers 5.19, and the state shapes of vLLM
0.32 (model_executor/layers/mamba/mamba_utils.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from ullage.models.blocks import (
    FULL,
    LINEAR,
    Block,
    Mlp,
    attend,
    heads_of,
    linear,
    mlp,
    norm,
    read_kinds,
    stack,
)
from ullage.models.config import Config
from ullage.models.layers import Model, Part, Recurrent, Weight

MAMBA2_NAMES: Final = ("num_heads", "head_dim", "state_size", "n_groups", "conv_kernel")
NEMOTRON_NAMES: Final = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", *MAMBA2_NAMES[3:])
HYBRID_NAMES: Final = (
    "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv",
)  # fmt: skip


def mamba2_state(config: Config, names: tuple[str, ...]) -> Recurrent:
    """The state that a Mamba 2 mixer keeps, by the names of its fields."""
    heads, head_dim, state, groups, conv = names
    count, width = config.number(heads, least=1), config.number(head_dim, least=1)
    size = config.number(state, least=1)
    steps, groups_of = config.number(conv, default=4) - 1, config.number(groups, default=1)
    return Recurrent("mamba2", count * width, steps, 2 * size, groups_of, count, width, size)


def _mamba2_weights(layer: Recurrent, hidden: int, *, has_norm: bool = True) -> Iterator[Weight]:
    # A Mamba 2 mixer, with the bias of its convolution and none of its projections.
    part = Part.RECURRENT
    yield linear(part, layer.channels + layer.convolved + layer.heads, hidden, layer.heads)
    yield linear(part, hidden, layer.channels, layer.heads)
    # The kernel and its bias.
    yield Weight(part, layer.convolved, layer.steps + 2, most_shards=layer.heads)
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


def _has_bias(config: Config) -> bool:
    return bool(config.flag("attention_bias", default=False))


def _mix(state: Recurrent, hidden: int, *, has_norm: bool = True) -> Block:
    return (state,), tuple(_mamba2_weights(state, hidden, has_norm=has_norm))


def _mamba(config: Config, model_type: str) -> Model:
    hidden, count = config.number("hidden_size", least=1), config.number("num_hidden_layers")
    inner = config.number(
        "intermediate_size", "d_inner", default=config.number("expand", default=2) * hidden
    )
    steps = config.number("conv_kernel", default=4) - 1
    state = _mamba1_layer(inner, config.number("state_size", default=16), steps)
    rank = _rank(config, hidden, "time_step_rank")
    blocks: list[Block] = [((state,), tuple(_mamba1_weights(state, hidden, rank)))] * count
    return stack(config, model_type, blocks, [None] * count, widest=2 * inner, is_tied=True)


def _rank(config: Config, hidden: int, name: str) -> int:
    is_auto = config.fields.get(name, "auto") == "auto"
    return -(-hidden // 16) if is_auto else int(config.number(name))


def _mamba2(config: Config, model_type: str) -> Model:
    hidden, count = config.number("hidden_size", least=1), config.number("num_hidden_layers")
    state = mamba2_state(config, MAMBA2_NAMES)
    if state.channels != config.number("expand", default=2) * hidden:
        raise config.wrong(
            "num_heads", f"found {state.heads} heads of {state.rows}, expected expand x hidden_size"
        )
    widest = state.channels + state.convolved + state.heads
    blocks = [_mix(state, hidden)] * count
    return stack(config, model_type, blocks, [None] * count, widest=widest)


def _granite(config: Config, model_type: str) -> Model:
    shape, kinds, state = (
        heads_of(config),
        granite_kinds(config),
        mamba2_state(config, HYBRID_NAMES),
    )
    full = attend(shape, has_bias=_has_bias(config))
    mixers = {LINEAR: _mix(state, shape.hidden), FULL: full}
    blocks, sizes = [mixers[kind] for kind in kinds], [granite_sizes(config)] * len(kinds)
    return stack(config, model_type, blocks, sizes, widest=2 * state.channels)


def granite_kinds(config: Config) -> tuple[str, ...]:
    """The kind of each layer of Granite 4: LINEAR, a state space, or FULL."""
    count = config.number("num_hidden_layers", least=1)
    usual = (LINEAR,) * count
    names = {"mamba": LINEAR, "attention": FULL, LINEAR: LINEAR, FULL: FULL}
    fields = "layer_types", "layers_block_type"
    return tuple(
        names[kind] for kind in read_kinds(config, count, set(names), *fields, usual=usual)
    )


def granite_sizes(config: Config) -> Mlp:
    """Widths of Granite 4's experts and of the MLP beside them, or of the MLP alone."""
    experts = config.number("num_local_experts", default=8)
    shared = config.number("shared_intermediate_size", default=1024)
    return Mlp(config.number("intermediate_size"), experts, shared) if experts else Mlp(shared)


def _bamba(config: Config, model_type: str) -> Model:
    shape, count = heads_of(config), config.number("num_hidden_layers", least=1)
    state = mamba2_state(config, HYBRID_NAMES)
    attended = config.row("attn_layer_indices", default=())
    mixers = _mix(state, shape.hidden), attend(shape, has_bias=_has_bias(config))
    blocks = [mixers[index in attended] for index in range(count)]
    sizes = [Mlp(config.number("intermediate_size"))] * count
    return stack(config, model_type, blocks, sizes, widest=2 * state.channels)


def _falcon_h1(config: Config, model_type: str) -> Model:
    # Every layer has attention and a state space side by side.
    shape, count = heads_of(config), config.number("num_hidden_layers", least=1)
    state = mamba2_state(config, HYBRID_NAMES)
    has_norm = config.flag("mamba_rms_norm", default=False)
    full = attend(shape, has_bias=_has_bias(config))
    mixed = _mix(state, shape.hidden, has_norm=has_norm)
    block = (*full[0], *mixed[0]), (*full[1], *mixed[1])
    sizes = [Mlp(config.number("intermediate_size"))] * count
    return stack(config, model_type, [block] * count, sizes, widest=2 * state.channels)


_NEMOTRON_LETTERS: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def _nemotron_h(config: Config, model_type: str) -> Model:
    # A layer is one thing: a state space, attention, an MLP, or experts.
    shape = heads_of(config, head_dim=128, kv_heads=8)
    names = {"linear_attention": "mamba", "full_attention": "attention"}
    if config.has("hybrid_override_pattern"):
        kinds = [_NEMOTRON_LETTERS[each] for each in config.text("hybrid_override_pattern")]
    else:
        kinds = [names.get(each, each) for each in config.row("layers_block_type")]
    is_fp32 = config.text("mamba_ssm_cache_dtype", default="float32") == "float32"
    state = replace(mamba2_state(config, NEMOTRON_NAMES), is_state_fp32=is_fp32)
    blocks = []
    for kind in kinds:
        if kind == "mamba":
            blocks.append(_mix(state, shape.hidden))
        elif kind == "attention":
            blocks.append(attend(shape, has_bias=_has_bias(config)))
        else:
            own = mlp(shape.hidden, _nemotron_sizes(config, kind), is_gated=False)
            blocks.append(((), tuple(own)))
    widest = max(config.number("intermediate_size"), 2 * state.channels)
    return stack(config, model_type, blocks, [None] * len(blocks), widest=widest)


def _nemotron_sizes(config: Config, kind: str) -> Mlp:
    if kind == "mlp":
        return Mlp(config.number("intermediate_size"))
    if config.has("moe_latent_size"):
        raise config.wrong("moe_latent_size", "experts in a latent space are not known here")
    shared = config.number("moe_shared_expert_intermediate_size")
    shared *= config.number("n_shared_experts", default=1)
    return Mlp(config.number("moe_intermediate_size"), config.number("n_routed_experts"), shared)


def _jamba(config: Config, model_type: str) -> Model:
    shape, count = heads_of(config, kv_heads=8), config.number("num_hidden_layers", least=1)
    inner = config.number("mamba_expand", default=2) * shape.hidden
    steps = config.number("mamba_d_conv", default=4) - 1
    state = _mamba1_layer(inner, config.number("mamba_d_state", default=16), steps)
    rank = _rank(config, shape.hidden, "mamba_dt_rank")
    attention_every = config.number("attn_layer_period", default=8, least=1)
    attention_first = config.number("attn_layer_offset", default=4)
    experts_every = config.number("expert_layer_period", default=2, least=1)
    experts_first = config.number("expert_layer_offset", default=1)
    experts = config.number("num_experts", default=16)
    norms = norm(rank), norm(state.columns, count=2)
    mixed = (state,), (*_mamba1_weights(state, shape.hidden, rank), *norms)
    blocks, sizes = [], []
    for index in range(count):
        is_attention = index % attention_every == attention_first
        blocks.append(attend(shape) if is_attention else mixed)
        is_sparse = experts > 1 and index % experts_every == experts_first
        sizes.append(Mlp(config.number("intermediate_size"), experts if is_sparse else 0))
    return stack(config, model_type, blocks, sizes, widest=2 * state.channels)


def _lfm2(config: Config, model_type: str) -> Model:
    # Short convolutions among attention.
    shape, count = heads_of(config, kv_heads=8), config.number("num_hidden_layers", least=1)
    full = config.row("full_attn_idxs", default=tuple(range(count)))
    usual = tuple("full_attention" if index in full else "conv" for index in range(count))
    kinds = read_kinds(config, count, {"conv", "full_attention"}, "layer_types", usual=usual)
    kernel, hidden, part = config.number("conv_L_cache", default=3), shape.hidden, Part.RECURRENT
    projections = linear(part, 3 * hidden, hidden, None), linear(part, hidden, hidden, None)
    mixers: dict[str, Block] = {
        "conv": (
            (Recurrent("conv", channels=hidden, steps=kernel - 1),),
            (*projections, Weight(part, hidden, kernel)),
        ),
        "full_attention": attend(shape, norm(shape.head_dim, count=2)),
    }
    sizes = [Mlp(_lfm2_width(config))] * count
    blocks = [mixers[kind] for kind in kinds]
    return stack(config, model_type, blocks, sizes, widest=3 * hidden, is_tied=True)


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
