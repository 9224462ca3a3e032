"""The pieces that most architectures are built of, as weights, and the sizes they share.

Source: the modules of transformers 5.19 to 5.23; every count is compared with the parameters that
transformers makes for the same configuration (tests/unit/models/test_read_model.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any, Final

from ullage.facts.families.config import Config
from ullage.facts.families.layers import Attention, Layer, Part, Weight

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
LINEAR: Final = "linear_attention"

Flag = bool | tuple[str, bool]
"""Fixed by the architecture, or a field and transformers' default for it."""


def read_flag(config: Config, flag: Flag) -> bool:
    """True if the flag is on for this configuration."""
    return flag if isinstance(flag, bool) else bool(config.flag(flag[0], default=flag[1]))


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of attention."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Mlp:
    """Sizes of a layer's MLP or experts.

    Attributes:
        width: width of the dense MLP, or of each expert; 0: there is none.
        experts: how many; 0: it is dense.
        shared: width of the MLP that runs beside the experts.
        has_shared_gate: a vector weighs it.
    """

    width: int
    experts: int = 0
    shared: int = 0
    has_shared_gate: bool = False


def split_heads(config: Config, hidden: int, heads: int, kv_heads: int | None = None) -> Shape:
    """Attention whose heads share the hidden size out."""
    if hidden % heads:
        name = "d_model" if config.has("d_model") else "hidden_size"
        raise config.wrong(name, f"found {hidden}, expected a multiple of {heads} heads")
    return Shape(hidden, heads, kv_heads or heads, hidden // heads)


def linear(part: Part, out: int, into: int, shards: int | None, **extra: Any) -> Weight:  # noqa: ANN401
    """The matrix of a linear layer."""
    return Weight(part, out, into, is_linear=True, most_shards=shards, **extra)


def norm(width: int, *, has_bias: bool = False, count: int = 1) -> Weight:
    """A normalisation; it is on every rank."""
    return Weight(Part.NORM, width, count=count * (1 + has_bias), most_shards=1)


def attention(
    shape: Shape, *, qkv_bias: bool = False, out_bias: bool = False, num_kv: int = 2
) -> Iterator[Weight]:
    """Query, key, value and output projections; num_kv: 1: a key is its value, 0: it has none."""
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield linear(Part.ATTENTION, wide, shape.hidden, shape.heads)
    yield linear(Part.ATTENTION, narrow, shape.hidden, shape.kv_heads, count=num_kv)
    yield linear(Part.ATTENTION, shape.hidden, wide, shape.heads)
    if qkv_bias:
        yield Weight(Part.ATTENTION, wide, most_shards=shape.heads)
        yield Weight(Part.ATTENTION, narrow, count=num_kv, most_shards=shape.kv_heads)
    if out_bias:
        yield Weight(Part.ATTENTION, shape.hidden, most_shards=1)


def dense(hidden: int, width: int, *, is_gated: bool, has_bias: bool) -> Iterator[Weight]:
    """An MLP of two matrices, or of three where it is gated."""
    yield linear(Part.MLP, width, hidden, None, count=1 + is_gated)
    yield linear(Part.MLP, hidden, width, None)
    if has_bias:
        yield Weight(Part.MLP, width, count=1 + is_gated)
        yield Weight(Part.MLP, hidden, most_shards=1)


def mlp(
    hidden: int, sizes: Mlp, *, is_gated: bool = True, has_bias: bool = False,
    has_router_bias: bool = False,
) -> Iterator[Weight]:  # fmt: skip
    """A layer's MLP, or its experts with what chooses among them and what runs beside them."""
    if not sizes.experts:
        if sizes.width:
            yield from dense(hidden, sizes.width, is_gated=is_gated, has_bias=has_bias)
        return
    each = (1 + is_gated) * sizes.experts
    yield linear(Part.EXPERTS, sizes.width, hidden, None, count=each)
    yield linear(Part.EXPERTS, hidden, sizes.width, None, count=sizes.experts)
    if has_bias:
        yield Weight(Part.EXPERTS, sizes.width, count=each)
        yield Weight(Part.EXPERTS, hidden, count=sizes.experts, most_shards=1)
    yield Weight(Part.ROUTER, sizes.experts, hidden, most_shards=1)
    if has_router_bias:
        yield Weight(Part.ROUTER, sizes.experts, most_shards=1)
    if sizes.shared:
        yield from dense(hidden, sizes.shared, is_gated=is_gated, has_bias=False)
    if sizes.has_shared_gate:
        yield Weight(Part.ROUTER, 1, hidden, most_shards=1)


def vocabulary(config: Config, hidden: int, *, is_tied: bool) -> Iterator[Weight]:
    """The embedding, and the output head unless it is the same matrix."""
    vocab = config.number("vocab_size", least=1)
    yield Weight(Part.EMBEDDING, vocab, hidden)
    if not config.flag("tie_word_embeddings", default=is_tied):
        yield Weight(Part.HEAD, vocab, hidden)


def read_kinds(
    config: Config, count: int, allowed: Set[str], *names: str, usual: tuple[str, ...] | None = None
) -> tuple[str, ...]:
    """The kind of each layer, as one of these fields lists them; usual: where none is there."""
    kinds = config.row(*names) if usual is None else config.row(*names, default=usual)
    if len(kinds) != count:
        raise config.wrong(
            names[0], f"found {len(kinds)} entries, expected num_hidden_layers={count}"
        )
    for kind in kinds:
        if kind not in allowed:
            raise config.wrong(names[0], f"found {kind!r}, expected {' or '.join(sorted(allowed))}")
    return tuple(kinds)


Block = tuple[tuple[Layer, ...], tuple[Weight, ...]]
"""The cache that a layer's mixer keeps, and its weights."""


def attend(
    shape: Shape, *more: Weight, qkv_bias: bool = False, out_bias: bool = False, num_kv: int = 2
) -> tuple[tuple[Attention], tuple[Weight, ...]]:
    """Attention that sees all tokens, with weights that it has besides."""
    own = attention(shape, qkv_bias=qkv_bias, out_bias=out_bias, num_kv=num_kv)
    return (Attention(shape.heads, shape.kv_heads, shape.head_dim),), (*own, *more)
