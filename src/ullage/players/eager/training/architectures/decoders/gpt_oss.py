"""gpt-oss, as transformers' modeling_gpt_oss.py has it: every other layer sees a window, heads may
look at nothing (sinks), experts have biases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ullage.facts.families.blocks import Mlp
from ullage.players.eager.training.architectures.decoders import decoder as base
from ullage.players.eager.training.architectures.decoders.experts import Experts, Mixture, Router
from ullage.players.eager.training.architectures.norms import Norm, WideNorm
from ullage.players.eager.training.architectures.rotary import Table, rotary_table
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.module import parameter
from ullage.players.eager.training.eager.routing import clamp, grouped_product, highest, take_rows
from ullage.players.eager.training.eager.tensor import Tensor


class SinkAttention(base.Attention):
    """GptOssAttention: each head has one more score, which belongs to no token (a sink)."""

    def __init__(self, parts: base.Parts, kind: str = base.FULL) -> None:
        super().__init__(parts, kind)
        heads = parts.config.number("num_attention_heads")
        self.sinks = parameter(parts.arena, heads, dtype=parts.dtype)

    def turn(self, query: Tensor, key: Tensor, context: base.Context) -> tuple[Tensor, Tensor]:
        table = context.tables[self.kind]
        return rotate_halves(query, table), rotate_halves(key, table)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        batch, heads, length, _ = query.shape
        times = heads // key.shape[1]
        key, value = F.repeat_heads(key, times), F.repeat_heads(value, times)
        scores = F.scale(F.matmul(query, key, is_second_transposed=True))
        if mask is not None:
            scores = F.add(scores, mask)
        sinks = F.expand(F.view(self.sinks, (1, heads, 1, 1)), (batch, heads, length, 1))
        joined = F.cat((scores, sinks), -1)
        highest_score, _ = highest(joined, 1)
        joined = F.sub(joined, highest_score)
        shares = F.softmax(joined)
        weights = F.narrow(shares, -1, length)
        out = F.matmul(F.dropout(weights, self.dropout), value)
        return F.transpose(F.contiguous(F.transpose(out, 1, 2)), 1, 2)


def rotate_halves(x: Tensor, table: Table) -> Tensor:
    """_apply_rotary_emb of gpt-oss: tables as wide as half a head."""
    cos, sin = table
    half = x.shape[-1] // 2
    first, second = F.split(x, (half, half))
    turned = F.sub(F.mul(first, cos), F.mul(second, sin))
    other = F.add(F.mul(second, cos), F.mul(first, sin))
    return F.cat((turned, other), -1)


class BiasedRouter(Router):
    """GptOssTopKRouter: the softmax of the highest scores alone."""

    def __init__(self, parts: base.Parts, count: int, chosen: int) -> None:
        super().__init__(parts, count, chosen)
        self.bias = parameter(parts.arena, count, dtype=parts.dtype)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, numbers = highest(F.linear(x, self.weight, self.bias), self.chosen)
        return F.softmax(weights), numbers


class BiasedExperts(Experts):
    """GptOssExperts: matrices that lie the other way around, with biases, and a bounded gate."""

    def __init__(self, parts: base.Parts, count: int, inner: int) -> None:
        hidden, arena, dtype = parts.config.number("hidden_size"), parts.arena, parts.dtype
        self.inner = inner
        self.gate_up_proj = parameter(arena, count, hidden, 2 * inner, dtype=dtype)
        self.gate_up_proj_bias = parameter(arena, count, 2 * inner, dtype=dtype)
        self.down_proj = parameter(arena, count, inner, hidden, dtype=dtype)
        self.down_proj_bias = parameter(arena, count, hidden, dtype=dtype)

    def into(self, x: Tensor, numbers: Tensor) -> Tensor:
        bias = take_rows(self.gate_up_proj_bias, numbers)
        out = grouped_product(x, self.gate_up_proj, is_transposed=True)
        return F.add(out, bias, in_place=True)

    def gate(self, x: Tensor) -> Tensor:
        gate, up = F.narrow(x, -1, self.inner), F.narrow(x, -1, self.inner)
        gate = clamp(gate, num_bounds=1)
        up = clamp(up, num_bounds=2)
        bounded = F.elementwise(F.scale(gate), saves_input=False, saves_output=True)
        return F.mul(F.shift(up), F.mul(gate, bounded))

    def back(self, x: Tensor, numbers: Tensor) -> Tensor:
        bias = take_rows(self.down_proj_bias, numbers)
        out = grouped_product(x, self.down_proj, is_transposed=True)
        return F.add(out, bias, in_place=True)


class BiasedMixture(Mixture):
    """GptOssMLP."""

    def __init__(self, parts: base.Parts, sizes: Mlp) -> None:
        router = BiasedRouter(parts, sizes.experts, parts.config.number("num_experts_per_tok"))
        super().__init__(router, BiasedExperts(parts, sizes.experts, sizes.width))


class GptOss(base.Decoder):
    """GptOssForCausalLM, without the loss that balances its experts."""

    attention: ClassVar[type[base.Attention]] = SinkAttention
    mixture: ClassVar[type[Mixture]] = BiasedMixture
    norm_kind: ClassVar[type[Norm]] = WideNorm
    has_sdpa = False
    has_window = True

    def tables(self, x: Tensor, kinds: list[str]) -> Mapping[str, Table]:
        return dict.fromkeys(kinds, rotary_table(x, x.shape[1], self.rotated // 2))
