"""Gemma 4 (text), as transformers' modeling_gemma4.py has it: what Gemma 3n has but AltUp, and
experts beside the MLP.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ullage.facts.families.blocks import Mlp
from ullage.facts.families.gemma3n import SharingLayer
from ullage.facts.families.gemma4 import describe_gemma4, gemma4_experts
from ullage.log.category import Category
from ullage.players.eager.training.architectures.decoders.decoder import Context, Layer, Parts
from ullage.players.eager.training.architectures.decoders.experts import GATED, Experts, Mixture
from ullage.players.eager.training.architectures.decoders.gemma3n import (
    OwnInputLayer,
    PowerNorm,
    SharingDecoder,
    plain_norm,
)
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.indexing import select
from ullage.players.eager.training.eager.module import Module, parameter
from ullage.players.eager.training.eager.routing import highest, take_rows
from ullage.players.eager.training.eager.tensor import FLOAT32, Tensor, empty


class ScaledRouter(Module):
    """Gemma4TextRouter."""

    def __init__(self, parts: Parts, count: int) -> None:
        hidden = parts.config.number("hidden_size")
        self.chosen = parts.config.number("top_k_experts", least=1)
        self.proj = parts.linear(hidden, count)
        self.scale = parameter(parts.arena, hidden, dtype=parts.dtype)
        self.per_expert_scale = parameter(parts.arena, count, dtype=parts.dtype)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of the experts of each token, (tokens, chosen) each."""
        x = F.scale(F.mul(plain_norm(x), self.scale))
        weights, numbers = highest(F.softmax(self.proj(x), FLOAT32), self.chosen)
        scales = take_rows(self.per_expert_scale, numbers)
        return F.mul(weights, scales), numbers


class Gemma4Layer(OwnInputLayer):
    """Gemma4TextDecoderLayer."""

    def __init__(
        self, parts: Parts, kind: str, sizes: Mlp, layer: SharingLayer, experts: Mlp | None
    ) -> None:
        super().__init__(parts, kind, sizes, layer)
        self.scalar = [empty(parts.arena, (1,), parts.dtype, Category.BUFFER)]
        self.experts = None
        if experts is not None:
            hidden = parts.config.number("hidden_size")
            router = ScaledRouter(parts, experts.experts)
            self.experts = Mixture(router, Experts(parts, experts.experts, experts.width), GATED)
            self.post_feedforward_layernorm_1 = parts.norm(PowerNorm, hidden)
            self.post_feedforward_layernorm_2 = parts.norm(PowerNorm, hidden)
            self.pre_feedforward_layernorm_2 = parts.norm(PowerNorm, hidden)

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        own = None if context.own_inputs is None else select(context.own_inputs, 2)
        residual = x
        x = self.self_attn(self.input_layernorm(x), context)
        x = self.post_attention_layernorm(x)
        x = F.add(residual, x)
        residual = x
        x = self.mlp(self.pre_feedforward_layernorm(x))
        if self.experts is not None:
            first = self.post_feedforward_layernorm_1(x)
            flat = F.view(residual, (x.shape[0] * x.shape[1], x.shape[2]))
            weights, numbers = self.experts.gate(flat)
            second = self.pre_feedforward_layernorm_2(flat)
            second = F.view(self.experts.experts(second, weights, numbers), x.shape)
            second = self.post_feedforward_layernorm_2(second)
            x = F.add(first, second)
        x = self.post_feedforward_layernorm(x)
        x = F.add(residual, x)
        if own is not None:
            residual = x
            x = F.add(residual, self.own_input(x, own))
        return F.scale_in_place(x, *self.scalar)


class Gemma4(SharingDecoder):
    """Gemma4ForCausalLM."""

    layer: ClassVar[type[Layer]] = Gemma4Layer

    @property
    def described(self) -> tuple[SharingLayer, ...]:
        return describe_gemma4(self.parts.config)

    def plan(self, place: int) -> tuple[Any, ...]:
        return *super().plan(place), gemma4_experts(self.parts.config)

    def hidden(self, tokens: Tensor) -> Tensor:
        words, context = self.begin(tokens)
        return self.norm(self.layers(words, context))
