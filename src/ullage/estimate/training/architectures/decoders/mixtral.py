"""modeling_mixtral.py and modeling_qwen3_moe.py of transformers: experts in place of the MLP."""

from __future__ import annotations

from typing import ClassVar

from ullage.estimate.training.architectures.decoders import decoder as base
from ullage.estimate.training.architectures.decoders.dispatched import make_experts
from ullage.estimate.training.architectures.decoders.experts import GATED, Mixture, Router
from ullage.estimate.training.architectures.decoders.llama import Mistral, Qwen3Attention
from ullage.estimate.training.eager.module import Module
from ullage.models.blocks import Mlp


class MixtralLayer(base.Layer):
    """MixtralDecoderLayer."""

    def make_mlp(self, parts: base.Parts, sizes: Mlp) -> Module:
        router = Router(parts, sizes.experts, parts.config.number("num_experts_per_tok", default=2))
        return Mixture(router, make_experts(parts, sizes), ("w1", "w3", "w2"))


class Mixtral(Mistral):
    """MixtralForCausalLM, without the loss that balances its experts."""

    layer: ClassVar[type[base.Layer]] = MixtralLayer


class Qwen3MoELayer(base.Layer):
    """Qwen3MoeDecoderLayer: some layers may have no experts."""

    attention: ClassVar[type[base.Attention]] = Qwen3Attention

    def make_mlp(self, parts: base.Parts, sizes: Mlp) -> Module:
        if not sizes.experts:
            return base.GatedMLP(parts, sizes.width)
        chosen = parts.config.number("num_experts_per_tok", default=8)
        router = Router(parts, sizes.experts, chosen, casts=True)
        return Mixture(router, make_experts(parts, sizes), GATED)


class Qwen3MoE(base.Decoder):
    """Qwen3MoeForCausalLM."""

    layer: ClassVar[type[base.Layer]] = Qwen3MoELayer

    def layer_kinds(self) -> list[str]:
        config = self.parts.config
        if config.flag("use_sliding_window", default=False):
            raise config.wrong("use_sliding_window", "found true, which ullage has no formula for")
        return super().layer_kinds()
