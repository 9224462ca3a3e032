"""Granite 4 hybrids, Bamba and Nemotron-H, as transformers' modeling_granitemoehybrid.py,
modeling_bamba.py and modeling_nemotron_h.py have them where the kernels of mamba_ssm are not
installed: most layers are Mamba 2, some attend.
"""

from __future__ import annotations

from typing import ClassVar

from ullage.facts.families.blocks import LINEAR, Mlp
from ullage.players.eager.training.architectures.activations import find_activation
from ullage.players.eager.training.architectures.decoders import decoder as base
from ullage.players.eager.training.architectures.decoders.dispatched import make_experts
from ullage.players.eager.training.architectures.decoders.experts import Mixture, Router
from ullage.players.eager.training.architectures.decoders.llama import Granite, GraniteLayer
from ullage.players.eager.training.architectures.decoders.mamba2 import Mixer, read_mixer
from ullage.players.eager.training.architectures.norms import Norm, RMSNorm
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.module import Module
from ullage.players.eager.training.eager.routing import highest
from ullage.players.eager.training.eager.tensor import FLOAT32, DType, Tensor


class StateSpace(Mixer):
    """GraniteMoeHybridMambaLayer, BambaMixer, NemotronHMamba2Mixer."""

    def __init__(self, parts: base.Parts) -> None:
        super().__init__(parts.arena, read_mixer(parts.config), parts.dtype)


class GraniteRouter(Router):
    """GraniteMoeHybridTopKRouter: the softmax of the highest scores alone."""

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = F.to(F.linear(x, self.weight), FLOAT32)
        weights, numbers = highest(scores, self.chosen)
        return F.to(F.softmax(weights), x.dtype), numbers


class SharedMLP(Module):
    """GraniteMoeHybridMLP: gate and what it gates come from one matrix."""

    def __init__(self, parts: base.Parts, inner: int) -> None:
        hidden, self.inner = parts.config.number("hidden_size"), inner
        self.act = find_activation(parts.config, "hidden_act", default="silu")
        self.input_linear = parts.linear(hidden, 2 * self.inner)
        self.output_linear = parts.linear(self.inner, hidden)

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = F.split(self.input_linear(x), (self.inner, self.inner))
        return self.output_linear(F.mul(self.act(gate), up))


class GraniteHybridLayer(GraniteLayer):
    """GraniteMoeHybridDecoderLayer: what is added to the residual is scaled."""

    def __init__(self, parts: base.Parts, kind: str, sizes: Mlp) -> None:
        config, hidden = parts.config, parts.config.number("hidden_size")
        self.input_layernorm = parts.norm(parts.family.norm_kind, hidden)
        self.post_attention_layernorm = parts.norm(parts.family.norm_kind, hidden)
        self.block_sparse_moe = None
        if sizes.experts:
            router = GraniteRouter(parts, sizes.experts, config.number("num_experts_per_tok"))
            self.block_sparse_moe = Mixture(router, make_experts(parts, sizes))
        self.shared_mlp = SharedMLP(parts, sizes.shared or sizes.width)
        self.add_mixer(parts, kind)

    def feed(self, x: Tensor) -> Tensor:
        x = self.post_attention_layernorm(x)
        if self.block_sparse_moe is None:
            return self.shared_mlp(x)
        return F.add(self.block_sparse_moe(x), self.shared_mlp(x))


class GraniteHybrid(Granite):
    """GraniteMoeHybridForCausalLM: embeddings and logits are scaled."""

    layer: ClassVar[type[base.Layer]] = GraniteHybridLayer
    recurrent: ClassVar[type[Module]] = StateSpace

    @property
    def rotated(self) -> int:
        is_rotated = self.parts.config.fields.get("position_embedding_type") == "rope"
        return super().rotated if is_rotated else 0


class Bamba(base.Decoder):
    """BambaForCausalLM, without the loss that keeps logits small."""

    attention: ClassVar[type[base.Attention]] = base.PartlyRotated
    recurrent: ClassVar[type[Module]] = StateSpace

    def layer_kinds(self) -> list[str]:
        config = self.parts.config
        if config.real("z_loss_coefficient", default=0.0):
            raise config.wrong("z_loss_coefficient", "found one, which ullage has no formula for")
        return super().layer_kinds()

    @property
    def rotated(self) -> int:
        return int(self.parts.shape.head_dim * 0.5)  # fixed in its configuration class


class NemotronNorm(RMSNorm):
    """NemotronHRMSNorm: the weight is cast to float32, and multiplies there."""

    def weigh(self, x: Tensor, dtype: DType) -> Tensor:
        return F.to(F.mul(F.to(self.weight, FLOAT32), x), dtype)


class PlainMLP(Module):
    """NemotronHMLP: two matrices."""

    def __init__(self, parts: base.Parts, inner: int) -> None:
        config, hidden = parts.config, parts.config.number("hidden_size")
        has_bias = config.flag("mlp_bias", default=False)
        self.act = find_activation(config, "mlp_hidden_act", default="relu2")
        self.up_proj = parts.linear(hidden, inner, has_bias=has_bias)
        self.down_proj = parts.linear(inner, hidden, has_bias=has_bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.up_proj(x)))


class NemotronLayer(base.Layer):
    """NemotronHBlock: one of the three, and no more."""

    def __init__(self, parts: base.Parts, kind: str, sizes: Mlp) -> None:
        self.norm_before = parts.norm(NemotronNorm, parts.config.number("hidden_size"))
        self.feed_forward = PlainMLP(parts, sizes.width) if kind == MLP else None
        if self.feed_forward is None:
            self.add_mixer(parts, kind)

    def __call__(self, x: Tensor, context: base.Context) -> Tensor:
        residual = x
        x = self.norm_before(x)
        x = self.mix(x, context) if self.feed_forward is None else self.feed_forward(x)
        return F.add(residual, x)


MLP = "mlp"


class NemotronH(base.Decoder):
    """NemotronHForCausalLM without experts."""

    layer: ClassVar[type[base.Layer]] = NemotronLayer
    recurrent: ClassVar[type[Module]] = StateSpace
    norm_kind: ClassVar[type[Norm]] = NemotronNorm

    rotated = 0

    def layer_kinds(self) -> list[str]:
        kinds, config = super().layer_kinds(), self.parts.config
        if len(kinds) != config.number("num_hidden_layers", default=len(kinds)):
            raise config.wrong("num_hidden_layers", f"found a pattern of {len(kinds)} layers")
        for kind in kinds:
            if kind not in (LINEAR, base.FULL, MLP):
                raise config.wrong(
                    "layers_block_type", f"found {kind!r}, which ullage has no formula for"
                )
        return kinds

    def logits(self, x: Tensor) -> Tensor:
        return F.to(self.lm_head(x), FLOAT32)
