"""The language model of Llama 4, as transformers' modeling_llama4.py has it: most layers see a
chunk, every expert computes every token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ullage.facts.families.blocks import Mlp
from ullage.facts.families.decoders import CHUNKED
from ullage.players.eager.training.architectures.decoders import decoder as base
from ullage.players.eager.training.architectures.norms import Norm, UnscaledNorm, normalize
from ullage.players.eager.training.architectures.rotary import Table, split_heads
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.attention import attend_eagerly
from ullage.players.eager.training.eager.module import Linear, Module, parameter
from ullage.players.eager.training.eager.routing import highest, repeat_rows, sum_first
from ullage.players.eager.training.eager.tensor import FLOAT32, Tensor


class Llama4Attention(base.Attention):
    """Llama4TextAttention: in layers that see chunks, rotated and normalized in float32."""

    def __init__(self, parts: base.Parts, kind: str = base.FULL) -> None:
        super().__init__(parts, kind)
        config = parts.config
        self.is_rotated = self.kind == CHUNKED
        self.is_normalized = self.is_rotated and config.flag("use_qk_norm", default=True)
        self.is_tempered = not self.is_rotated and config.flag(
            "attn_temperature_tuning", default=True
        )

    def __call__(self, x: Tensor, context: base.Context) -> Tensor:
        batch, length, _ = x.shape
        query, key = (
            F.view(heads, (batch, length, heads.shape[2] // self.head_dim, self.head_dim))
            for heads in (self.q_proj(x), self.k_proj(x))
        )
        value = split_heads(self.v_proj(x), self.head_dim)
        if self.is_rotated:
            query, key = self.turn(query, key, context)
        if self.is_normalized:
            query, key = (
                F.to(normalize(F.to(heads, FLOAT32)), heads.dtype) for heads in (query, key)
            )
        if self.is_tempered:
            scales = x.like((batch, length, 1, 1), FLOAT32)
            query = F.to(F.mul(query, scales), query.dtype)
        query, key = F.transpose(query, 1, 2), F.transpose(key, 1, 2)
        out = self.attend(query, key, value, context.masks[self.kind])
        del query, key, value
        batch, heads, length, width = out.shape
        return self.o_proj(F.reshape(F.transpose(out, 1, 2), (batch, length, heads * width)))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        if not self.is_eager:
            return super().attend(query, key, value, mask)
        return attend_eagerly(query, key, value, mask, dropout=self.dropout, is_wide=False)

    def turn(self, query: Tensor, key: Tensor, context: base.Context) -> tuple[Tensor, Tensor]:
        """As complex numbers, in float32."""
        table, _ = context.tables[self.kind]
        wide = [F.to(heads, FLOAT32) for heads in (query, key)]
        turned = [F.mul(heads, table) for heads in wide]
        query, key = (F.to(heads, query.dtype) for heads in turned)
        return query, key


class AllExperts(Module):
    """Llama4TextMoe: all tokens go to all experts, weighted by zero where they are not chosen."""

    def __init__(self, parts: base.Parts, sizes: Mlp) -> None:
        config, arena, dtype = parts.config, parts.arena, parts.dtype
        hidden, self.inner, self.count = config.number("hidden_size"), sizes.width, sizes.experts
        self.chosen = config.number("num_experts_per_tok", default=1)
        self.gate_up_proj = parameter(arena, self.count, hidden, 2 * self.inner, dtype=dtype)
        self.down_proj = parameter(arena, self.count, self.inner, hidden, dtype=dtype)
        self.router = Linear(arena, hidden, self.count, dtype)
        self.shared_expert = base.GatedMLP(parts, sizes.shared)

    def __call__(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = F.view(x, (shape[0] * shape[1], shape[2]))
        scores = self._route(x)
        rows = repeat_rows(x, self.count)
        weights = F.reshape(F.transpose(scores, 0, 1), (rows.shape[0], 1))
        rows = F.mul(rows, weights)
        routed = self._compute(rows)
        out = self.shared_expert(x)
        out = F.add(out, sum_first(F.view(routed, (self.count, *x.shape))), in_place=True)
        return F.view(out, shape)

    def _route(self, x: Tensor) -> Tensor:
        """Llama4Router: (tokens, experts); a sigmoid, zero for those that are not chosen."""
        logits = self.router(x)
        values, _ = highest(logits, self.chosen)
        scores = F.elementwise(F.to(logits, FLOAT32), saves_input=False, saves_output=True)
        del values
        return F.to(scores, logits.dtype)

    def _compute(self, rows: Tensor) -> Tensor:
        """Llama4TextExperts."""
        count, width = self.count, rows.shape[1]
        rows = F.view(rows, (count, rows.shape[0] // count, width))
        joined = F.matmul(rows, self.gate_up_proj)
        gate, up = F.split(joined, (self.inner, self.inner))
        out = F.matmul(F.mul(up, F.elementwise(gate)), self.down_proj)
        return F.view(out, (out.shape[0] * out.shape[1], width))


class Llama4(base.Decoder):
    """Llama4ForCausalLM, of text."""

    attention: ClassVar[type[base.Attention]] = Llama4Attention
    mixture: ClassVar[type[Module]] = AllExperts
    norm_kind: ClassVar[type[Norm]] = UnscaledNorm
    has_window = True

    def window(self, kind: str) -> int | None:
        if kind != CHUNKED:
            return None
        window: int | None = self.parts.config.number("attention_chunk_size", default=8192)
        return window

    def tables(self, x: Tensor, kinds: list[str]) -> Mapping[str, Table]:
        table = x.like((1, x.shape[1], 1, self.rotated), FLOAT32)
        return dict.fromkeys(kinds, (table, table))
