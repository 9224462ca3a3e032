"""Granite 4 hybrids, Bamba and Nemotron-H, as transformers' modeling_granitemoehybrid.py,
modeling_bamba.py and modeling_nemotron_h.py have them where the kernels of mamba_ssm are not
installed: most layers are Mamba 2, some attend.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ullage.estimate.training.architectures.activations import find_activation
from ullage.estimate.training.architectures.decoders import decoder as base
from ullage.estimate.training.architectures.decoders.dispatched import make_experts
from ullage.estimate.training.architectures.decoders.experts import Mixture, Router
from ullage.estimate.training.architectures.decoders.llama import Granite, GraniteLayer
from ullage.estimate.training.architectures.decoders.mamba2 import Mixer, MixerSizes, read_mixer
from ullage.estimate.training.architectures.norms import Norm, RMSNorm
from ullage.estimate.training.architectures.rotary import Table
from ullage.estimate.training.eager import functional as F
from ullage.estimate.training.eager.module import Module
from ullage.estimate.training.eager.routing import highest
from ullage.estimate.training.eager.tensor import FLOAT32, DType, Tensor
from ullage.models.blocks import Mlp
from ullage.models.hybrids import HYBRID_NAMES, NEMOTRON_NAMES, granite_kinds, granite_sizes

MAMBA = "linear_attention"
_KINDS = {"mamba": MAMBA, "attention": base.FULL}  # as older files say it


def _read(parts: base.Parts) -> MixerSizes:
    config = parts.config
    inner = int(config.real("mamba_expand", default=2) * config.number("hidden_size", default=4096))
    heads = config.number("mamba_n_heads", default=128, least=1)
    names, biases = (*HYBRID_NAMES, "mamba_chunk_size"), ("mamba_proj_bias", "mamba_conv_bias")
    usual = heads, inner // heads, 256, 1, 4, 256
    return read_mixer(config, names, usual, "mamba_expand", biases)


def _make_mixer(
    parts: base.Parts, kind: str, attention: type[base.Attention]
) -> Mixer | base.Attention:
    if kind == MAMBA:
        return Mixer(parts.arena, _read(parts), parts.dtype)
    return attention(parts, kind)


def _mix(mixer: Mixer | base.Attention, x: Tensor, context: base.Context) -> Tensor:
    return mixer(x) if isinstance(mixer, Mixer) else mixer(x, context)


class GraniteHybridAttention(base.Attention):
    """GraniteMoeHybridAttention: it may know nothing of positions."""

    def turn(self, query: Tensor, key: Tensor, context: base.Context) -> tuple[Tensor, Tensor]:
        return super().turn(query, key, context) if context.tables else (query, key)


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
        self.input_layernorm = parts.norm(self.norm, hidden)
        self.post_attention_layernorm = parts.norm(self.norm, hidden)
        self.block_sparse_moe = None
        if sizes.experts:
            router = GraniteRouter(
                parts, sizes.experts, config.number("num_experts_per_tok", default=2)
            )
            self.block_sparse_moe = Mixture(router, make_experts(parts, sizes))
        self.shared_mlp = SharedMLP(parts, sizes.shared or sizes.width)
        self.mixer = _make_mixer(parts, kind, GraniteHybridAttention)

    def mix(self, x: Tensor, context: base.Context) -> Tensor:
        return _mix(self.mixer, x, context)

    def feed(self, x: Tensor) -> Tensor:
        x = self.post_attention_layernorm(x)
        if self.block_sparse_moe is None:
            return self.shared_mlp(x)
        return F.add(self.block_sparse_moe(x), self.shared_mlp(x))


class GraniteHybrid(Granite):
    """GraniteMoeHybridForCausalLM: embeddings and logits are scaled."""

    layer: ClassVar[type[base.Layer]] = GraniteHybridLayer

    def layer_kinds(self) -> list[str]:
        return list(granite_kinds(self.parts.config))

    def sizes(self, place: int) -> Mlp:
        return granite_sizes(self.parts.config)

    @property
    def paces(self) -> Mapping[str, int]:
        return super().paces if self.has_rotation else {}

    @property
    def has_rotation(self) -> bool:
        """Queries and keys are rotated; otherwise the model has no positions."""
        return self.parts.config.fields.get("position_embedding_type") == "rope"

    def tables(self, x: Tensor, kinds: list[str]) -> Mapping[str, Table]:
        return super().tables(x, kinds) if self.has_rotation else {}


class BambaAttention(base.PartlyRotated):
    """BambaAttention."""


class BambaLayer(base.Layer):
    """BambaDecoderLayer."""

    def __init__(self, parts: base.Parts, kind: str, sizes: Mlp) -> None:
        hidden = parts.config.number("hidden_size")
        self.mlp = self.make_mlp(parts, sizes)
        self.input_layernorm = parts.norm(self.norm, hidden)
        self.post_attention_layernorm = parts.norm(self.norm, hidden)
        self.mixer = _make_mixer(parts, kind, BambaAttention)

    def mix(self, x: Tensor, context: base.Context) -> Tensor:
        return _mix(self.mixer, x, context)


class Bamba(base.Decoder):
    """BambaForCausalLM, without the loss that keeps logits small."""

    layer: ClassVar[type[base.Layer]] = BambaLayer

    def layer_kinds(self) -> list[str]:
        config = self.parts.config
        if config.real("z_loss_coefficient", default=0.0):
            raise config.wrong("z_loss_coefficient", "found one, which ullage has no formula for")
        attended = config.row("attn_layer_indices", default=())
        count = config.number("num_hidden_layers", least=1)
        return [base.FULL if place in attended else MAMBA for place in range(count)]

    @property
    def rotated(self) -> int:
        return int(self.parts.shape.head_dim * 0.5)  # fixed in its configuration class


class NemotronNorm(RMSNorm):
    """NemotronHRMSNorm: the weight is cast to float32, and multiplies there."""

    def weigh(self, x: Tensor, dtype: DType) -> Tensor:
        return F.to(F.mul(F.to(self.weight, FLOAT32), x), dtype)


class PlainAttention(base.Attention):
    """NemotronHAttention: it knows nothing of positions."""

    def turn(self, query: Tensor, key: Tensor, context: base.Context) -> tuple[Tensor, Tensor]:
        return query, key


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
        config, hidden = parts.config, parts.config.number("hidden_size")
        self.norm_before = NemotronNorm(parts.arena, hidden, parts.dtype)
        self.mixer: Mixer | base.Attention | PlainMLP
        if kind == MLP:
            self.mixer = PlainMLP(parts, sizes.width)
        elif kind == base.FULL:
            self.mixer = PlainAttention(parts, kind)
        else:
            names = *NEMOTRON_NAMES, "chunk_size"
            mixer = read_mixer(config, names, (128, 64, 128, 8, 4, 128))
            self.mixer = Mixer(parts.arena, mixer, parts.dtype)

    def __call__(self, x: Tensor, context: base.Context) -> Tensor:
        residual = x
        x = self.norm_before(x)
        x = self.mixer(x, context) if isinstance(self.mixer, base.Attention) else self.mixer(x)
        return F.add(residual, x)


MLP = "mlp"
_MARKS = {"M": MAMBA, "*": base.FULL, "-": MLP}  # hybrid_override_pattern of older files


class NemotronH(base.Decoder):
    """NemotronHForCausalLM without experts."""

    layer: ClassVar[type[base.Layer]] = NemotronLayer
    norm_kind: ClassVar[type[Norm]] = NemotronNorm

    def layer_kinds(self) -> list[str]:
        config = self.parts.config
        field = "hybrid_override_pattern"
        if config.has(field):
            kinds = [_MARKS.get(mark, mark) for mark in config.text(field)]
        else:
            field = "layers_block_type"
            kinds = [_KINDS.get(kind, kind) for kind in config.row(field, "layer_types")]
        for kind in kinds:
            if kind not in _MARKS.values():
                raise config.wrong(field, f"found {kind!r}, which ullage has no formula for")
        if len(kinds) != config.number("num_hidden_layers", default=len(kinds)):
            raise config.wrong(field, f"found {len(kinds)} layers, not num_hidden_layers")
        return kinds

    @property
    def paces(self) -> Mapping[str, int]:
        return {}

    def tables(self, x: Tensor, kinds: list[str]) -> Mapping[str, Table]:
        return {}

    def logits(self, x: Tensor) -> Tensor:
        return F.to(self.lm_head(x), FLOAT32)
