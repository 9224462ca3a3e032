"""What decoder language models of transformers share: embedding, layers, norm, head, loss.

A family says what its layers are made of; Llama's are the plainest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from ullage.estimate.training.architectures.activations import find_activation
from ullage.estimate.training.architectures.losses import causal_loss
from ullage.estimate.training.architectures.masks import causal_mask
from ullage.estimate.training.architectures.model import LanguageModel, parameter_dtype
from ullage.estimate.training.architectures.norms import Norm, RMSNorm
from ullage.estimate.training.architectures.rotary import (
    Table,
    frequencies,
    join_heads,
    rotary_table,
    rotate,
    split_heads,
)
from ullage.estimate.training.eager import functional as F
from ullage.estimate.training.eager.arena import Arena
from ullage.estimate.training.eager.attention import attend, attend_eagerly
from ullage.estimate.training.eager.module import Embedding, Linear, Module, Stack
from ullage.estimate.training.eager.parallel.ring import attend_in_ring
from ullage.estimate.training.eager.tensor import INT64, DType, Tensor
from ullage.estimate.training.layout import Ring
from ullage.estimate.training.recipe import Recipe
from ullage.models.config import Config

__all__ = ["FULL", "SLIDING", "Attention", "Context", "Decoder", "GatedMLP", "Layer", "Parts"]

FULL, SLIDING = "full_attention", "sliding_attention"  # layer_types of a config.json


@dataclass(frozen=True, slots=True)
class Parts:
    """What the modules of a model are built from.

    Attributes:
        dtype: of the parameters.
        head_dim: width of a head.
    """

    arena: Arena
    config: Config
    recipe: Recipe
    dtype: DType
    head_dim: int

    def linear(self, inputs: int, outputs: int, *, has_bias: bool = False) -> Linear:
        """nn.Linear in the model's dtype."""
        return Linear(self.arena, inputs, outputs, self.dtype, has_bias=has_bias)

    def norm(self, kind: type[Norm], width: int) -> Norm:
        """A norm in the model's dtype."""
        return kind(self.arena, width, self.dtype)

    @property
    def is_eager(self) -> bool:
        """Attention by hand, every score kept."""
        return self.recipe.attention == "eager"


@dataclass(frozen=True, slots=True)
class Context:
    """What every layer of a pass is given.

    Attributes:
        tables: of the rotation, by the kind of a layer.
        masks: the same; None where none is needed.
        positions: numbers of the tokens, that checkpoints keep.
    """

    tables: Mapping[str, Table]
    masks: Mapping[str, Tensor | None]
    positions: Tensor


class Attention(Module):
    """LlamaAttention: queries, grouped keys and values, rotated.

    Attributes:
        has_bias: whether the queries', keys' and values' projections have one; None: as the field
            attention_bias says.
        has_out_bias: the same of the last projection.
        bias_default: what attention_bias is where the configuration does not say.
        ring: ranks that share out the sequence; None: this rank has all of it.
    """

    has_bias: ClassVar[bool | None] = None
    has_out_bias: ClassVar[bool | None] = None
    bias_default: ClassVar[bool] = False
    ring: Ring | None = None

    def __init__(self, parts: Parts, kind: str = FULL) -> None:
        config = parts.config
        hidden, heads = config.number("hidden_size"), config.number("num_attention_heads")
        kv_heads = config.number("num_key_value_heads", default=heads)
        if heads % max(kv_heads, 1):
            raise config.wrong(
                "num_key_value_heads", f"found {kv_heads}, expected a divisor of {heads} heads"
            )
        said = config.flag("attention_bias", default=self.bias_default)
        has_bias = said if self.has_bias is None else self.has_bias
        has_out_bias = said if self.has_out_bias is None else self.has_out_bias
        self.kind = kind
        self.head_dim = parts.head_dim
        self.is_eager = parts.is_eager
        self.ring = parts.recipe.layout.ring
        self.dropout = config.real("attention_dropout", default=0.0)
        width, kv_width = heads * self.head_dim, kv_heads * self.head_dim
        self.q_proj = parts.linear(hidden, width, has_bias=has_bias)
        self.k_proj = parts.linear(hidden, kv_width, has_bias=has_bias)
        self.v_proj = parts.linear(hidden, kv_width, has_bias=has_bias)
        self.o_proj = parts.linear(width, hidden, has_bias=has_out_bias)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (batch, heads, length, head_dim)."""
        query = split_heads(self.q_proj(x), self.head_dim)
        key = split_heads(self.k_proj(x), self.head_dim)
        return query, key, split_heads(self.v_proj(x), self.head_dim)

    def turn(self, query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Queries and keys, rotated."""
        table = context.tables[self.kind]
        return rotate(query, table), rotate(key, table)

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        query, key, value = self.heads(x)
        query, key = self.turn(query, key, context)
        return self.o_proj(join_heads(self.attend(query, key, value, context.masks[self.kind])))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """What each query finds, (batch, heads, length, width)."""
        if self.ring is not None:
            return attend_in_ring(query, key, value, self.ring, dropout=self.dropout)
        attention = attend_eagerly if self.is_eager else attend
        return attention(query, key, value, mask, dropout=self.dropout)


class GatedMLP(Module):
    """LlamaMLP."""

    def __init__(self, parts: Parts, inner: int | None = None) -> None:
        config = parts.config
        hidden = config.number("hidden_size")
        inner = config.number("intermediate_size") if inner is None else inner
        has_bias = config.flag("mlp_bias", default=False)
        self.act = find_activation(config, "hidden_act", "hidden_activation", default="silu")
        self.gate_proj = parts.linear(hidden, inner, has_bias=has_bias)
        self.up_proj = parts.linear(hidden, inner, has_bias=has_bias)
        self.down_proj = parts.linear(inner, hidden, has_bias=has_bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(F.mul(self.act(self.gate_proj(x)), self.up_proj(x)))


class Layer(Module):
    """LlamaDecoderLayer."""

    attention: ClassVar[type[Attention]] = Attention
    norm: ClassVar[type[Norm]] = RMSNorm

    def __init__(self, parts: Parts, kind: str = FULL) -> None:
        hidden = parts.config.number("hidden_size")
        self.self_attn = self.attention(parts, kind)
        self.mlp = self.make_mlp(parts, kind)
        self.input_layernorm = parts.norm(self.norm, hidden)
        self.post_attention_layernorm = parts.norm(self.norm, hidden)

    def make_mlp(self, parts: Parts, kind: str) -> Module:
        """What comes after attention."""
        del kind
        return GatedMLP(parts)

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        residual = x
        x = self.self_attn(self.input_layernorm(x), context)
        x = F.add(residual, x)
        residual = x
        x = self.mlp(self.post_attention_layernorm(x))
        return F.add(residual, x)


class Decoder(LanguageModel):
    """...ForCausalLM, without a cache of keys and values.

    Attributes:
        layer: of what the stack is made.
        norm_kind: of the norm after the last layer.
        is_tied: whether the head's weight is the embedding's where the configuration does not say.
        has_sdpa: transformers knows sdpa for it; else attention is by hand, whatever was asked for.
        head_dim, window_default: fields head_dim and sliding_window where they are not there; None:
            the hidden size's share, and no window.
    """

    layer: ClassVar[type[Layer]] = Layer
    norm_kind: ClassVar[type[Norm]] = RMSNorm
    is_tied: ClassVar[bool] = False
    has_sdpa: ClassVar[bool] = True
    head_dim: ClassVar[int | None] = None
    window_default: ClassVar[int | None] = None

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        if not self.has_sdpa:
            recipe = replace(recipe, attention="eager")
        hidden, vocab = config.number("hidden_size"), config.number("vocab_size")
        heads = config.number("num_attention_heads", least=1)
        width = config.number("head_dim", default=self.head_dim or hidden // heads)
        parts = Parts(arena, config, recipe, parameter_dtype(recipe), width)
        self.parts = parts
        self.embed_tokens = Embedding(arena, vocab, hidden, parts.dtype)
        self.kinds = self.layer_kinds()
        self.layers = Stack(
            arena,
            "layers",
            config.number("num_hidden_layers", least=1),
            lambda kind: self.layer(parts, kind),
            kinds=self.kinds,
        )
        self.norm = parts.norm(self.norm_kind, hidden)
        self.frequencies = [
            frequency
            for _ in range(self.count_tables())
            for frequency in frequencies(arena, self.rotated)
        ]
        is_tied = config.flag("tie_word_embeddings", default=self.is_tied)
        self.lm_head = Linear(
            arena, hidden, vocab, parts.dtype, weight=self.embed_tokens.weight if is_tied else None
        )
        self.stacks = (self.layers,)

    def layer_kinds(self) -> list[str]:
        """Of each layer what it sees: the field layer_types, or everything."""
        config = self.parts.config
        count = config.number("num_hidden_layers", least=1)
        kinds = config.row("layer_types", default=None)
        if kinds is None:
            return [FULL] * count
        if len(kinds) != count:
            raise config.wrong("layer_types", f"found {len(kinds)} of them for {count} layers")
        return list(kinds)

    def window(self, kind: str) -> int | None:
        """How many tokens back a layer of a kind sees; None: all."""
        return self.sliding_window if kind == SLIDING else None

    @property
    def sliding_window(self) -> int | None:
        """The field of that name; null says that there is none."""
        config = self.parts.config
        if "sliding_window" not in config.fields:
            return self.window_default
        window: int | None = config.number("sliding_window", default=None)
        return window

    @property
    def rotated(self) -> int:
        """How many elements of a head are rotated."""
        return self.parts.head_dim

    def count_tables(self) -> int:
        """How many paces the rotation has."""
        return 1

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens as vectors."""
        return self.embed_tokens(tokens)

    def context(self, x: Tensor) -> Context:
        """Tables and masks for all layers."""
        kinds = list(dict.fromkeys(self.kinds))
        positions = x.like((1, x.shape[1]), INT64)
        masks = {kind: causal_mask(x, self.parts.recipe, self.window(kind)) for kind in kinds}
        return Context(self.tables(x, kinds), masks, positions)

    def tables(self, x: Tensor, kinds: list[str]) -> Mapping[str, Table]:
        """What the rotation multiplies by, for each kind of layer."""
        return dict.fromkeys(kinds, rotary_table(x, x.shape[1], self.rotated))

    def logits(self, x: Tensor) -> Tensor:
        """Scores of all words."""
        return self.lm_head(x)

    def hidden(self, tokens: Tensor) -> Tensor:
        """What the head is given, or a stage of a pipeline hands on."""
        x = self.embed(tokens)
        whole = (*tokens.shape, x.shape[-1])  # of the sequence, of which x may be a part
        return self.norm(self.layers(x, self.context(x.alias(whole))))

    def __call__(self, *inputs: Tensor) -> Tensor:
        tokens, labels = inputs
        x = self.hidden(tokens)
        return causal_loss(self.logits(x), labels)
