"""Gemma 2 and 3 (text), as transformers' modeling_gemma2.py and modeling_gemma3.py have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ullage.facts.families.blocks import Mlp
from ullage.players.eager.training.architectures.decoders import decoder as base
from ullage.players.eager.training.architectures.norms import CenteredNorm, Norm
from ullage.players.eager.training.architectures.rotary import Table, rotary_table
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.attention import attend_eagerly
from ullage.players.eager.training.eager.tensor import Tensor


class Gemma2Attention(base.Attention):
    """Gemma2Attention: scores are bounded, which sdpa does not know how to do."""

    def __init__(self, parts: base.Parts, kind: str = base.FULL) -> None:
        super().__init__(parts, kind)
        self.has_cap = bool(parts.config.fields.get("attn_logit_softcapping", 50.0))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return attend_eagerly(query, key, value, mask, dropout=self.dropout, has_cap=self.has_cap)


class GemmaLayer(base.Layer):
    """Norms before and after attention, before and after the MLP."""

    def __init__(self, parts: base.Parts, kind: str, sizes: Mlp) -> None:
        super().__init__(parts, kind, sizes)
        hidden, norm = parts.config.number("hidden_size"), parts.family.norm_kind
        self.pre_feedforward_layernorm = parts.norm(norm, hidden)
        self.post_feedforward_layernorm = parts.norm(norm, hidden)

    def __call__(self, x: Tensor, context: base.Context) -> Tensor:
        residual = x
        x = self.self_attn(self.input_layernorm(x), context)
        x = F.add(residual, self.post_attention_layernorm(x))
        residual = x
        x = self.mlp(self.pre_feedforward_layernorm(x))
        return F.add(residual, self.post_feedforward_layernorm(x))


class Gemma2(base.Decoder):
    """Gemma2ForCausalLM: every other layer sees a window; the logits are bounded."""

    layer: ClassVar[type[base.Layer]] = GemmaLayer
    attention: ClassVar[type[base.Attention]] = Gemma2Attention
    has_sdpa = False
    has_window = True
    norm_kind: ClassVar[type[Norm]] = CenteredNorm
    cap: float | None = 30.0  # final_logit_softcapping, where the configuration says nothing

    def embed(self, tokens: Tensor) -> Tensor:
        return F.scale(self.embed_tokens(tokens))

    def logits(self, x: Tensor) -> Tensor:
        fields = self.parts.config.fields
        scores = self.lm_head(x)
        if not fields.get("final_logit_softcapping", self.cap):
            return scores
        scores = F.scale(scores)
        scores = F.elementwise(scores, saves_input=False, saves_output=True)
        return F.scale(scores)


class Gemma3Attention(base.Attention):
    """Gemma3Attention: each head's queries and keys are normalized."""

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().heads(x)
        return self.q_norm(query), self.k_norm(key), value


class Gemma3(Gemma2):
    """Gemma3ForCausalLM: every sixth layer sees everything, and rotates at another pace."""

    attention: ClassVar[type[base.Attention]] = Gemma3Attention
    has_sdpa = True
    cap: float | None = None

    @property
    def paces(self) -> Mapping[str, int]:
        return dict.fromkeys(self.kinds, self.rotated)

    def tables(self, x: Tensor, kinds: list[str]) -> Mapping[str, Table]:
        return {kind: rotary_table(x, x.shape[1], self.paces[kind]) for kind in kinds}
