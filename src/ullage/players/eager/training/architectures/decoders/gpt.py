"""GPT-2, OPT and GPT-NeoX: layer norms, biases, an MLP of two matrices, dropout.

Each follows the modeling file of transformers that has its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ullage.facts.families.blocks import Mlp, read_flag
from ullage.facts.families.config import Config
from ullage.players.eager.training.architectures import rotary
from ullage.players.eager.training.architectures.activations import find_activation
from ullage.players.eager.training.architectures.decoders import decoder as base
from ullage.players.eager.training.architectures.norms import Norm
from ullage.players.eager.training.architectures.rotary import join_heads, split_heads
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.attention import attend, attend_eagerly
from ullage.players.eager.training.eager.module import Embedding, LayerNorm, Module
from ullage.players.eager.training.eager.tensor import Tensor
from ullage.players.eager.training.recipe import Recipe


class MLP(Module):
    """GPT2MLP: two matrices with biases."""

    def __init__(self, parts: base.Parts, inner: int) -> None:
        hidden, has_bias = parts.shape.hidden, read_flag(parts.config, parts.style.mlp_bias)
        self.act = find_activation(
            parts.config, "activation_function", "hidden_act", default="gelu"
        )
        self.c_fc = parts.linear(hidden, inner, has_bias=has_bias)
        self.c_proj = parts.linear(inner, hidden, has_bias=has_bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self.c_proj(self.act(self.c_fc(x)))


class GPT2Attention(Module):
    """GPT2Attention: queries, keys and values come from one matrix."""

    def __init__(self, parts: base.Parts, kind: str) -> None:
        hidden, self.head_dim = parts.shape.hidden, parts.shape.head_dim
        self.is_eager = parts.is_eager
        self.dropout = parts.config.real("attn_pdrop", default=0.1)
        self.c_attn = parts.linear(hidden, 3 * hidden, has_bias=True)
        self.c_proj = parts.linear(hidden, hidden, has_bias=True)

    def __call__(self, x: Tensor, context: base.Context) -> Tensor:
        hidden, mask = x.shape[-1], context.masks[base.FULL]
        query, key, value = F.split(self.c_attn(x), (hidden,) * 3)
        key, value = split_heads(key, self.head_dim), split_heads(value, self.head_dim)
        query = split_heads(query, self.head_dim)
        if self.is_eager:
            out = attend_eagerly(query, key, value, mask, dropout=self.dropout, is_wide=False)
        else:
            out = attend(query, key, value, mask, dropout=self.dropout)
        del query, key, value
        return self.c_proj(join_heads(out))


class GPT2Layer(base.Layer):
    """GPT2Block."""

    def __init__(self, parts: base.Parts, kind: str, sizes: Mlp) -> None:
        hidden = parts.shape.hidden
        self.dropout = parts.config.real("resid_pdrop", default=0.1)
        self.ln_1 = parts.norm(LayerNorm, hidden)
        self.attn = GPT2Attention(parts, kind)
        self.ln_2 = parts.norm(LayerNorm, hidden)
        self.mlp = MLP(parts, sizes.width)

    def __call__(self, x: Tensor, context: base.Context) -> Tensor:
        residual = x
        x = F.dropout(self.attn(self.ln_1(x), context), self.dropout)
        x = F.add(x, residual)
        residual = x
        x = F.dropout(self.mlp(self.ln_2(x)), self.dropout)
        return F.add(residual, x)


class GPT(base.Decoder):
    """Decoders from before Llama: layer norms, and positions that are learned."""

    norm_kind: ClassVar[type[Norm | LayerNorm]] = LayerNorm
    rotated = 0

    def add_positions(self, parts: base.Parts) -> None:
        rows = check_length(parts.config, parts.recipe) + (parts.style.positions or 0)
        self.positions = Embedding(parts.arena, rows, parts.shape.hidden, parts.dtype)


class GPT2(GPT):
    """GPT2LMHeadModel."""

    layer: ClassVar[type[base.Layer]] = GPT2Layer

    def hidden(self, tokens: Tensor) -> Tensor:
        words, places = self.embed_tokens(tokens), tokens.like((1, tokens.shape[1]))
        positions = self.positions(places)
        x = F.add(words, positions)
        context = self.context(x, places)
        dropout = self.parts.config.real("embd_pdrop", default=0.1)
        return self.norm(self.layers(F.dropout(x, dropout), context))


class OPTAttention(base.Attention):
    """OPTAttention: queries are scaled before the product with the keys."""

    adapted: Mapping[str, tuple[str, ...]] = {"o_proj": ("out_proj",)}

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query = split_heads(F.scale(self.q_proj(x)), self.head_dim)
        key, value = self.k_proj(x), self.v_proj(x)
        return query, split_heads(key, self.head_dim), split_heads(value, self.head_dim)


class OPTLayer(base.Layer):
    """OPTDecoderLayer: its norms come first, or after the residual is added."""

    def __init__(self, parts: base.Parts, kind: str, sizes: Mlp) -> None:
        hidden = parts.shape.hidden
        self.dropout = parts.config.real("dropout", default=0.1)
        self.is_before = parts.config.flag("do_layer_norm_before", default=True)
        self.self_attn = OPTAttention(parts, kind)
        self.self_attn_layer_norm = parts.norm(LayerNorm, hidden)
        self.mlp = MLP(parts, sizes.width)
        self.final_layer_norm = parts.norm(LayerNorm, hidden)

    def __call__(self, x: Tensor, context: base.Context) -> Tensor:
        shape = x.shape
        residual = x
        x = self.self_attn_layer_norm(x) if self.is_before else x
        x = F.dropout(self.self_attn(x, context), self.dropout)
        x = F.add(residual, x)
        x = x if self.is_before else self.self_attn_layer_norm(x)
        x = F.reshape(x, (shape[0] * shape[1], shape[2]))
        residual = x
        x = self.final_layer_norm(x) if self.is_before else x
        x = F.dropout(self.mlp(x), self.dropout)
        x = F.view(F.add(residual, x), shape)
        return x if self.is_before else self.final_layer_norm(x)


class OPT(GPT):
    """OPTForCausalLM."""

    layer: ClassVar[type[base.Layer]] = OPTLayer

    def add_positions(self, parts: base.Parts) -> None:
        super().add_positions(parts)
        width, hidden = self.embed_tokens.weight.shape[1], parts.shape.hidden
        is_narrow = width != hidden
        self.project_out = parts.linear(hidden, width) if is_narrow else None
        self.project_in = parts.linear(width, hidden) if is_narrow else None

    def hidden(self, tokens: Tensor) -> Tensor:
        words = self.embed_tokens(tokens)
        context = self.context(words, tokens.like())
        positions = self.positions(tokens.like())
        words = words if self.project_in is None else self.project_in(words)
        x = self.norm(self.layers(F.add(words, positions), context))
        return x if self.project_out is None else self.project_out(x)


class NeoXAttention(base.Attention):
    """GPTNeoXAttention: each head's query, key and value lie side by side."""

    def __init__(self, parts: base.Parts, kind: str) -> None:
        self.set_options(parts, kind, parts.shape.head_dim)
        hidden, has_bias = parts.shape.hidden, read_flag(parts.config, parts.style.qkv_bias)
        self.query_key_value = parts.linear(hidden, 3 * hidden, has_bias=has_bias)
        self.dense = parts.linear(hidden, hidden, has_bias=has_bias)

    def __call__(self, x: Tensor, context: base.Context) -> Tensor:
        joined = split_heads(self.query_key_value(x), 3 * self.head_dim)
        query, key, value = F.split(joined, (self.head_dim,) * 3)
        del joined
        table = context.tables[self.kind]
        query, key = rotary.rotate_part(query, table), rotary.rotate_part(key, table)
        return self.dense(join_heads(self.attend(query, key, value, context.masks[self.kind])))


class NeoXLayer(base.Layer):
    """GPTNeoXLayer: attention and MLP side by side, or one after the other."""

    def __init__(self, parts: base.Parts, kind: str, sizes: Mlp) -> None:
        hidden = parts.shape.hidden
        self.dropout = parts.config.real("hidden_dropout", default=0.0)
        self.is_parallel = parts.config.flag("use_parallel_residual", default=True)
        self.input_layernorm = parts.norm(LayerNorm, hidden)
        self.post_attention_layernorm = parts.norm(LayerNorm, hidden)
        self.attention = NeoXAttention(parts, kind)
        self.mlp = MLP(parts, sizes.width)

    def __call__(self, x: Tensor, context: base.Context) -> Tensor:
        attended = F.dropout(self.attention(self.input_layernorm(x), context), self.dropout)
        if self.is_parallel:
            out = F.dropout(self.mlp(self.post_attention_layernorm(x)), self.dropout)
            return F.add(F.add(out, attended), x)
        attended = F.add(attended, x)
        out = F.dropout(self.mlp(self.post_attention_layernorm(attended)), self.dropout)
        return F.add(out, attended)


class GPTNeoX(base.Decoder):
    """GPTNeoXForCausalLM."""

    layer: ClassVar[type[base.Layer]] = NeoXLayer
    norm_kind: ClassVar[type[Norm | LayerNorm]] = LayerNorm

    @property
    def rotated(self) -> int:
        return int(self.parts.shape.head_dim * rotary.rotated_share(self.parts.config, 0.25))

    def hidden(self, tokens: Tensor) -> Tensor:
        words = self.embed_tokens(tokens)
        x = F.dropout(words, self.parts.config.real("hidden_dropout", default=0.0))
        return self.norm(self.layers(x, self.context(x)))


def check_length(config: Config, recipe: Recipe) -> int:
    """How many positions are learned.

    Raises:
        SpecError: a sample is longer.
    """
    positions: int = config.number("max_position_embeddings")
    if recipe.length is not None and recipe.length > positions:
        raise config.wrong(
            "max_position_embeddings",
            f"found {positions}, too few for a length of {recipe.length} tokens",
        )
    return positions
