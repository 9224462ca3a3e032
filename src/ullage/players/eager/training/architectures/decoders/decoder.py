"""The modules of transformers' decoder language models: embedding, layers, norm, head, loss.

A family says what its layers are made of; Llama's are the plainest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

from ullage.facts.families.blocks import FULL, LINEAR, SLIDING, Mlp, Shape, read_flag
from ullage.facts.families.config import Config
from ullage.facts.families.decoders import (
    Style,
    attention_shape,
    embedding_width,
    find_qk_norm,
    find_style,
    has_final_norm,
    layer_kinds,
)
from ullage.players.eager.training.architectures import rotary
from ullage.players.eager.training.architectures.activations import find_activation
from ullage.players.eager.training.architectures.losses import causal_loss, language_loss
from ullage.players.eager.training.architectures.masks import causal_mask
from ullage.players.eager.training.architectures.model import LanguageModel, parameter_dtype
from ullage.players.eager.training.architectures.norms import Norm, RMSNorm
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.attention import attend, attend_eagerly
from ullage.players.eager.training.eager.module import (
    Embedding,
    Identity,
    LayerNorm,
    Linear,
    LMHead,
    Module,
    Stack,
)
from ullage.players.eager.training.eager.parallel.ring import attend_in_ring
from ullage.players.eager.training.eager.tensor import INT64, DType, Tensor
from ullage.players.eager.training.layout import Ring
from ullage.players.eager.training.recipe import Recipe

__all__ = ["FULL", "SLIDING"]

UNROTATED = "full_attention without rotation"


AnyNorm = TypeVar("AnyNorm", bound=Norm | LayerNorm)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that the modules of a model are built from.

    Attributes:
        dtype: type of the parameters.
        family: the model's class, which says what layers are made of.
    """

    arena: Arena
    config: Config
    recipe: Recipe
    dtype: DType
    family: type[Decoder]

    @property
    def style(self) -> Style:
        """How the model differs from Llama: defaults and biases."""
        return find_style(self.config.model_type)

    @property
    def shape(self) -> Shape:
        """Sizes of attention."""
        return attention_shape(self.config)

    def linear(self, inputs: int, outputs: int, *, has_bias: bool = False) -> Linear:
        """nn.Linear in the model's dtype."""
        return Linear(self.arena, inputs, outputs, self.dtype, has_bias=has_bias)

    def norm(self, kind: type[AnyNorm], width: int) -> AnyNorm:
        """A norm in the model's dtype."""
        return kind(self.arena, width, self.dtype)

    @property
    def is_eager(self) -> bool:
        """Attention by hand, every score kept."""
        return self.recipe.attention == "eager"


@dataclass(frozen=True, slots=True)
class Context:
    """Inputs that all layers of a pass share.

    Attributes:
        tables: tables of the rotation, by the kind of a layer.
        masks: masks, by the kind of a layer; None where none is needed.
        positions: numbers of the tokens, which checkpoints keep.
        own_inputs: a further input of each layer, (batch, length, layers, width).
        stored: keys and values that other layers read, by the kind of a layer.
    """

    tables: Mapping[str, rotary.Table]
    masks: Mapping[str, Tensor | None]
    positions: Tensor
    own_inputs: Tensor | None = None
    stored: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)


class Attention(Module):
    """LlamaAttention: queries, grouped keys and values, rotated.

    Attributes:
        ring: ranks that share out the sequence; None: this rank has all of it.
        query_parts: 2 where a head's queries come with a gate.
    """

    query_parts: ClassVar[int] = 1
    ring: Ring | None = None

    def __init__(self, parts: Parts, kind: str = FULL) -> None:
        config, style, shape = parts.config, parts.style, parts.shape
        self.set_options(parts, kind, shape.head_dim)
        self.ring = parts.recipe.layout.ring
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        has_bias = read_flag(config, style.qkv_bias)
        self.q_proj = parts.linear(shape.hidden, self.query_parts * width, has_bias=has_bias)
        self.k_proj = parts.linear(shape.hidden, kv_width, has_bias=has_bias)
        self.v_proj = parts.linear(shape.hidden, kv_width, has_bias=has_bias)
        has_out_bias = read_flag(config, style.out_bias)
        self.o_proj = parts.linear(width, shape.hidden, has_bias=has_out_bias)
        normed = find_qk_norm(config)
        if normed:
            widths = (width, kv_width) if normed == "width" else (shape.head_dim,) * 2
            self.q_norm, self.k_norm = (parts.norm(parts.family.norm_kind, n) for n in widths)

    def set_options(self, parts: Parts, kind: str, head_dim: int) -> None:
        """Sets the options of attention beside its matrices."""
        self.kind, self.head_dim, self.is_eager = kind, head_dim, parts.is_eager
        self.dropout = parts.config.real("attention_dropout", default=0.0)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (batch, heads, length, head_dim)."""
        query = rotary.split_heads(self.q_proj(x), self.head_dim)
        key = rotary.split_heads(self.k_proj(x), self.head_dim)
        return query, key, rotary.split_heads(self.v_proj(x), self.head_dim)

    def turn(self, query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Queries and keys, rotated where the layer's kind has positions."""
        table = context.tables.get(self.kind)
        if table is None:
            return query, key
        return rotary.rotate(query, table), rotary.rotate(key, table)

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        query, key, value = self.heads(x)
        query, key = self.turn(query, key, context)
        return self.o_proj(
            rotary.join_heads(self.attend(query, key, value, context.masks[self.kind]))
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """The values that each query finds, (batch, heads, length, width)."""
        if self.ring is not None:
            return attend_in_ring(query, key, value, self.ring, dropout=self.dropout)
        attention = attend_eagerly if self.is_eager else attend
        return attention(query, key, value, mask, dropout=self.dropout)


class PartlyRotated(Attention):
    """Attention of which a part of each head is rotated."""

    def turn(self, query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        table = context.tables[self.kind]
        return rotary.rotate_part(query, table), rotary.rotate_part(key, table)


class GatedMLP(Module):
    """LlamaMLP."""

    def __init__(self, parts: Parts, inner: int) -> None:
        config = parts.config
        hidden = config.number("hidden_size")
        has_bias = read_flag(config, parts.style.mlp_bias)
        self.act = find_activation(config, "hidden_act", "hidden_activation", default="silu")
        self.gate_proj = parts.linear(hidden, inner, has_bias=has_bias)
        self.up_proj = parts.linear(hidden, inner, has_bias=has_bias)
        self.down_proj = parts.linear(inner, hidden, has_bias=has_bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(F.mul(self.act(self.gate_proj(x)), self.up_proj(x)))


class Layer(Module):
    """LlamaDecoderLayer, of what the model's class says."""

    linear_attn: Any = None

    def __init__(self, parts: Parts, kind: str, sizes: Mlp) -> None:
        hidden = parts.config.number("hidden_size")
        self.add_mixer(parts, kind)
        self.mlp = self.make_mlp(parts, sizes)
        self.input_layernorm = parts.norm(parts.family.norm_kind, hidden)
        self.post_attention_layernorm = parts.norm(parts.family.norm_kind, hidden)

    def add_mixer(self, parts: Parts, kind: str) -> None:
        """Adds the module that looks back at earlier tokens."""
        if kind == LINEAR:
            self.linear_attn = parts.family.recurrent(parts)
        else:
            self.self_attn = parts.family.attention(parts, kind)

    def mix(self, x: Tensor, context: Context) -> Tensor:
        """Looks back at earlier tokens."""
        if self.linear_attn is None:
            return self.self_attn(x, context)
        out: Tensor = self.linear_attn(x)
        return out

    def make_mlp(self, parts: Parts, sizes: Mlp) -> Module:
        """Makes the block after attention: an MLP, or experts."""
        family = parts.family
        mlp: Module = (
            family.mixture(parts, sizes) if sizes.experts else family.mlp(parts, sizes.width)
        )
        return mlp

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        residual = x
        x = self.mix(self.input_layernorm(x), context)
        x = self.join(residual, x)
        residual = x
        x = self.feed(x)
        return self.join(residual, x)

    def feed(self, x: Tensor) -> Tensor:
        """The norm before the MLP, and the MLP."""
        out: Tensor = self.mlp(self.post_attention_layernorm(x))
        return out

    def join(self, residual: Tensor, x: Tensor) -> Tensor:
        """The sum with the residual."""
        return F.add(residual, x)


class Decoder(LanguageModel):
    """...ForCausalLM, without a cache of keys and values.

    Attributes:
        layer: class of the layers.
        attention: class of their attention.
        recurrent: class of what keeps a state in the layers that do not attend.
        mlp: class of their MLPs, made of their width.
        mixture: class of their experts, made of their sizes.
        norm_kind: class of all norms of hidden states, and of queries and keys if there are any.
        has_sdpa: transformers supports sdpa for it; otherwise attention is eager in any case.
        has_window: sliding_window, or its default, gives layers a window; without it only
            layer_types does.
        has_masks: layers share masks; otherwise each makes its own.
    """

    layer: ClassVar[type[Layer]] = Layer
    attention: ClassVar[type[Attention]] = Attention
    recurrent: ClassVar[type[Any]]
    mlp: ClassVar[type[Any]] = GatedMLP
    mixture: ClassVar[type[Any]]
    norm_kind: ClassVar[type[Norm | LayerNorm]] = RMSNorm
    has_sdpa: ClassVar[bool] = True
    has_window: ClassVar[bool] = False
    has_masks: ClassVar[bool] = True
    is_decoder: ClassVar[bool] = True

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        if not self.has_sdpa:
            recipe = replace(recipe, attention="eager")
        hidden, vocab = config.number("hidden_size"), config.number("vocab_size")
        parts = Parts(arena, config, recipe, parameter_dtype(recipe), type(self))
        self.parts = parts
        outer = embedding_width(config)
        self.embed_tokens = Embedding(arena, vocab, outer, parts.dtype)
        self.add_positions(parts)
        self.kinds = self.layer_kinds()
        plans = [self.plan(place) for place in range(len(self.kinds))]
        self.layers = Stack(
            arena, "layers", len(plans), lambda plan: self.layer(parts, *plan), kinds=plans
        )
        self.norm = parts.norm(self.norm_kind, hidden) if has_final_norm(config) else Identity()
        self.frequencies = [
            frequency
            for width in self.paces.values()
            for frequency in rotary.frequencies(arena, width)
        ]
        is_tied = config.flag("tie_word_embeddings", default=parts.style.is_tied)
        self.lm_head = LMHead(
            arena, outer, vocab, parts.dtype, weight=self.embed_tokens.weight if is_tied else None
        )
        self.stacks = (self.layers,)

    def add_positions(self, parts: Parts) -> None:
        """A table of positions, where there is one."""

    def layer_kinds(self) -> list[str]:
        """The kind of each layer: the field layer_types, a window, or everything."""
        config = self.parts.config
        if self.has_window or self.parts.style.kinds or config.has("layer_types"):
            return list(layer_kinds(config))
        return [FULL] * config.number("num_hidden_layers", least=1)

    def plan(self, place: int) -> tuple[Any, ...]:
        """The plan that a layer is built from."""
        return self.kinds[place], self.sizes(place)

    def sizes(self, place: int) -> Mlp:
        """The sizes of a layer's MLP or experts."""
        return self.parts.style.sizes(self.parts.config, place)

    def window(self, kind: str) -> int | None:
        """The number of earlier tokens that a layer of a kind sees; None: all."""
        return self.sliding_window if kind == SLIDING else None

    @property
    def sliding_window(self) -> int | None:
        """The field of that name; null says that there is none."""
        config = self.parts.config
        if "sliding_window" not in config.fields:
            return self.parts.style.window
        window: int | None = config.number("sliding_window", default=None)
        return window

    @property
    def rotated(self) -> int:
        """How many elements of a head are rotated; 0: the model has no positions."""
        return self.parts.shape.head_dim

    @property
    def paces(self) -> Mapping[str, int]:
        """How many elements of a head each pace of the rotation turns, by kinds of layers."""
        return {FULL: self.rotated} if self.rotated else {}

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens as vectors."""
        return self.embed_tokens(tokens)

    def context(self, x: Tensor, positions: Tensor | None = None) -> Context:
        """Tables and masks for all layers, and the positions if they are not given."""
        kinds = list(dict.fromkeys(self.kinds))
        if positions is None:
            positions = x.like((1, x.shape[1]), INT64)
        masks: dict[str, Tensor | None] = dict.fromkeys(kinds)
        if self.has_masks:
            masks = {kind: causal_mask(x, self.parts.recipe, self.window(kind)) for kind in kinds}
        return Context(self.tables(x, kinds), masks, positions)

    def tables(self, x: Tensor, kinds: list[str]) -> Mapping[str, rotary.Table]:
        """The tables that the rotation multiplies by, for each kind of layer."""
        if not self.rotated:
            return {}
        table = rotary.rotary_table(x, x.shape[1], self.rotated)
        return {kind: table for kind in kinds if kind != UNROTATED}

    def logits(self, x: Tensor) -> Tensor:
        """Scores of all words."""
        return self.lm_head(x)

    def hidden(self, tokens: Tensor) -> Tensor:
        """The head's input, or the output of a stage of a pipeline."""
        x = self.embed(tokens)
        whole = (*tokens.shape, x.shape[-1])  # of the sequence, of which x may be a part
        return self.norm(self.layers(x, self.context(x.alias(whole))))

    def __call__(self, *inputs: Tensor) -> Tensor:
        tokens, labels = inputs
        x = self.hidden(tokens)
        return self.loss(x, labels)

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        """The loss of the head's input."""
        kind = self.parts.recipe.loss_kind
        if kind == "full":
            return causal_loss(self.logits(x), labels)
        return language_loss(self.logits, self.lm_head.weight, x, labels, kind)
