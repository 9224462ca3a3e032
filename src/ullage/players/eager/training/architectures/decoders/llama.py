"""Llama and those that differ from it in little: Mistral, Qwen2, Qwen3, Granite, OLMo 2, SmolLM3.

Each follows the modeling file of transformers that has its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ullage.players.eager.training.architectures.decoders import decoder as base
from ullage.players.eager.training.architectures.norms import Norm, WideNorm
from ullage.players.eager.training.architectures.rotary import Table, rotary_table, split_heads
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.tensor import FLOAT32, Tensor


class Llama(base.Decoder):
    """LlamaForCausalLM."""


class Mistral(base.Decoder):
    """MistralForCausalLM: every layer sees a window, if there is one."""

    def layer_kinds(self) -> list[str]:
        kind = base.FULL if self.sliding_window is None else base.SLIDING
        return [kind] * self.parts.config.number("num_hidden_layers", least=1)


class Qwen2(base.Decoder):
    """Qwen2ForCausalLM: the layers from max_window_layers on see a window, if it is used."""

    has_window = True


class Qwen3Attention(base.Attention):
    """Qwen3Attention: each head's queries and keys are normalized."""

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query = self.q_norm(apart(self.q_proj(x), self.head_dim))
        key = self.k_norm(apart(self.k_proj(x), self.head_dim))
        value = split_heads(self.v_proj(x), self.head_dim)
        return F.transpose(query, 1, 2), F.transpose(key, 1, 2), value


class Qwen3(Qwen2):
    """Qwen3ForCausalLM."""

    attention: ClassVar[type[base.Attention]] = Qwen3Attention


class GraniteLayer(base.Layer):
    """GraniteDecoderLayer: what is added to the residual is scaled."""

    def join(self, residual: Tensor, x: Tensor) -> Tensor:
        return F.add(residual, F.scale(x))


class Granite(base.Decoder):
    """GraniteForCausalLM: embeddings and logits are scaled."""

    layer: ClassVar[type[base.Layer]] = GraniteLayer

    def embed(self, tokens: Tensor) -> Tensor:
        return F.scale(self.embed_tokens(tokens))

    def logits(self, x: Tensor) -> Tensor:
        return F.scale(self.lm_head(x))


class Olmo2Attention(base.Attention):
    """Olmo2Attention: queries and keys are normalized over all heads, and rotated in float32."""

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key = self.q_norm(self.q_proj(x)), self.k_norm(self.k_proj(x))
        value = split_heads(self.v_proj(x), self.head_dim)
        return split_heads(query, self.head_dim), split_heads(key, self.head_dim), value

    def turn(self, query: Tensor, key: Tensor, context: base.Context) -> tuple[Tensor, Tensor]:
        dtype = query.dtype
        query, key = super().turn(query, key, context)
        return F.to(query, dtype), F.to(key, dtype)


class Olmo2Layer(base.Layer):
    """Olmo2DecoderLayer: norms after attention and after the MLP."""

    def __call__(self, x: Tensor, context: base.Context) -> Tensor:
        residual = x
        x = self.input_layernorm(self.self_attn(x, context))
        x = F.add(residual, x)
        residual = x
        x = self.post_attention_layernorm(self.mlp(x))
        return F.add(residual, x)


class Olmo2(base.Decoder):
    """Olmo2ForCausalLM."""

    layer: ClassVar[type[base.Layer]] = Olmo2Layer
    attention: ClassVar[type[base.Attention]] = Olmo2Attention
    norm_kind: ClassVar[type[Norm]] = WideNorm

    def tables(self, x: Tensor, kinds: list[str]) -> Mapping[str, Table]:
        return dict.fromkeys(kinds, rotary_table(x, x.shape[1], self.rotated, FLOAT32))


class SmolLM3(base.Decoder):
    """SmolLM3ForCausalLM: every no_rope_layer_interval-th layer knows nothing of positions."""

    def layer_kinds(self) -> list[str]:
        config = self.parts.config
        if config.flag("use_sliding_window", default=False):
            raise config.wrong("use_sliding_window", "found true, which ullage has no formula for")
        count = config.number("num_hidden_layers", least=1)
        every = config.number("no_rope_layer_interval", default=4, least=1)
        rotated = config.row("no_rope_layers", default=None)
        if rotated is None:
            rotated = [(place + 1) % every for place in range(count)]
        return [base.FULL if rotates else base.UNROTATED for rotates in rotated]


def apart(x: Tensor, head_dim: int) -> Tensor:
    """(batch, length, width) as (batch, length, heads, head_dim)."""
    batch, length, width = x.shape
    return F.view(x, (batch, length, width // head_dim, head_dim))
