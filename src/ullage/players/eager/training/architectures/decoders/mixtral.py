"""modeling_mixtral.py and modeling_qwen3_moe.py of transformers: experts in place of the MLP."""

from __future__ import annotations

from typing import ClassVar

from ullage.facts.families.blocks import Mlp
from ullage.players.eager.training.architectures.decoders import decoder as base
from ullage.players.eager.training.architectures.decoders.dispatched import make_experts
from ullage.players.eager.training.architectures.decoders.experts import GATED, Mixture, Router
from ullage.players.eager.training.architectures.decoders.llama import Mistral, Qwen3Attention


class MixtralExperts(Mixture):
    """MixtralSparseMoeBlock."""

    def __init__(self, parts: base.Parts, sizes: Mlp) -> None:
        router = Router(parts, sizes.experts, parts.config.number("num_experts_per_tok"))
        super().__init__(router, make_experts(parts, sizes), ("w1", "w3", "w2"))


class Mixtral(Mistral):
    """MixtralForCausalLM, without the loss that balances its experts."""

    mixture: ClassVar[type[Mixture]] = MixtralExperts


class Qwen3Experts(Mixture):
    """Qwen3MoeSparseMoeBlock."""

    def __init__(self, parts: base.Parts, sizes: Mlp) -> None:
        chosen = parts.config.number("num_experts_per_tok")
        router = Router(parts, sizes.experts, chosen, casts=True)
        super().__init__(router, make_experts(parts, sizes), GATED)


class Qwen3MoE(base.Decoder):
    """Qwen3MoeForCausalLM: some layers may have no experts."""

    attention: ClassVar[type[base.Attention]] = Qwen3Attention
    mixture: ClassVar[type[Mixture]] = Qwen3Experts

    def layer_kinds(self) -> list[str]:
        config = self.parts.config
        if config.flag("use_sliding_window", default=False):
            raise config.wrong("use_sliding_window", "found true, which ullage has no formula for")
        return super().layer_kinds()
