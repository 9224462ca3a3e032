"""Phi-3 and Phi-4, as transformers' modeling_phi3.py has them."""

from __future__ import annotations

from typing import ClassVar

from ullage.facts.families.blocks import Mlp
from ullage.players.eager.training.architectures.decoders import decoder as base
from ullage.players.eager.training.architectures.decoders.llama import Mistral
from ullage.players.eager.training.architectures.rotary import rotated_share, split_heads
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.module import Module
from ullage.players.eager.training.eager.tensor import Tensor


class Phi3Attention(base.PartlyRotated):
    """Phi3Attention: queries, keys and values come from one matrix."""

    def __init__(self, parts: base.Parts, kind: str = base.FULL) -> None:
        shape = parts.shape
        self.set_options(parts, kind, shape.head_dim)
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.widths = width, kv_width, kv_width
        self.o_proj = parts.linear(width, shape.hidden)
        self.qkv_proj = parts.linear(shape.hidden, sum(self.widths))

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        joined = self.qkv_proj(x)
        query, key, value = (F.narrow(joined, -1, width) for width in self.widths)
        query, key = split_heads(query, self.head_dim), split_heads(key, self.head_dim)
        return query, key, split_heads(value, self.head_dim)


class Phi3MLP(Module):
    """Phi3MLP: gate and what it gates come from one matrix."""

    def __init__(self, parts: base.Parts, inner: int) -> None:
        hidden, self.inner = parts.config.number("hidden_size"), inner
        self.gate_up_proj = parts.linear(hidden, 2 * self.inner)
        self.down_proj = parts.linear(self.inner, hidden)

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = F.split(self.gate_up_proj(x), (self.inner, self.inner))
        up = F.mul(up, F.elementwise(gate))
        return self.down_proj(up)


class Phi3Layer(base.Layer):
    """Phi3DecoderLayer: dropout before each residual is added."""

    def __init__(self, parts: base.Parts, kind: str, sizes: Mlp) -> None:
        super().__init__(parts, kind, sizes)
        self.dropout = parts.config.real("resid_pdrop", default=0.0)

    def join(self, residual: Tensor, x: Tensor) -> Tensor:
        return F.add(residual, F.dropout(x, self.dropout))


class Phi3(Mistral):
    """Phi3ForCausalLM."""

    layer: ClassVar[type[base.Layer]] = Phi3Layer
    attention: ClassVar[type[base.Attention]] = Phi3Attention
    mlp: ClassVar[type[Module]] = Phi3MLP

    @property
    def rotated(self) -> int:
        return int(self.parts.shape.head_dim * rotated_share(self.parts.config, 1.0))
