"""Mixtral and Qwen3-MoE: experts in place of the MLP, as transformers' modeling_mixtral.py and
modeling_qwen3_moe.py have them.
"""

from __future__ import annotations

from typing import ClassVar

from ullage.estimate.training.architectures.decoders.decoder import (
    FULL,
    Attention,
    Decoder,
    GatedMLP,
    Layer,
    Parts,
)
from ullage.estimate.training.architectures.decoders.dispatched import make_experts
from ullage.estimate.training.architectures.decoders.experts import GATED, Mixture, Router
from ullage.estimate.training.architectures.decoders.llama import Mistral, Qwen3, Qwen3Attention
from ullage.estimate.training.eager.module import Module

DENSE = "dense"  # after the kind of a layer: it has an MLP where others have experts


class MixtralLayer(Layer):
    """MixtralDecoderLayer."""

    def make_mlp(self, parts: Parts, kind: str) -> Module:
        config = parts.config
        count = config.number("num_local_experts", default=8)
        chosen = config.number("num_experts_per_tok", default=2)
        return Mixture(
            Router(parts, count, chosen),
            make_experts(parts, count, config.number("intermediate_size")),
            ("w1", "w3", "w2"),
        )


class Mixtral(Mistral):
    """MixtralForCausalLM, without the loss that balances its experts."""

    layer: ClassVar[type[Layer]] = MixtralLayer


class Qwen3MoELayer(Layer):
    """Qwen3MoeDecoderLayer."""

    attention: ClassVar[type[Attention]] = Qwen3Attention

    def __init__(self, parts: Parts, kind: str = FULL) -> None:
        self.is_dense = kind.endswith(DENSE)
        super().__init__(parts, kind)

    def make_mlp(self, parts: Parts, kind: str) -> Module:
        if self.is_dense:
            return GatedMLP(parts)
        config = parts.config
        count = config.number("num_experts", "num_local_experts", default=128)
        chosen = config.number("num_experts_per_tok", default=8)
        return Mixture(
            Router(parts, count, chosen, casts=True),
            make_experts(parts, count, config.number("moe_intermediate_size", default=768)),
            GATED,
        )


class Qwen3MoE(Qwen3):
    """Qwen3MoeForCausalLM: some layers may have no experts."""

    layer: ClassVar[type[Layer]] = Qwen3MoELayer

    def layer_kinds(self) -> list[str]:
        config = self.parts.config
        every = config.number("decoder_sparse_step", default=1, least=1)
        dense = set(config.row("mlp_only_layers", default=()))
        if config.flag("use_sliding_window", default=False):
            raise config.wrong("use_sliding_window", "found true, which ullage has no formula for")
        return [
            FULL + DENSE if place in dense or (place + 1) % every else FULL
            for place, _ in enumerate(Decoder.layer_kinds(self))
        ]
