"""Qwen3-Next, Qwen3.5 and its mixture of experts, as transformers' modeling_qwen3_next.py,
modeling_qwen3_5.py and modeling_qwen3_5_moe.py have them where the kernels of fla and causal_conv1d
are not installed: the gated delta rule is written out in PyTorch, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ullage.facts.families.blocks import Mlp
from ullage.facts.families.hybrids import delta_net
from ullage.players.eager.training.architectures import rotary
from ullage.players.eager.training.architectures.decoders import decoder as base
from ullage.players.eager.training.architectures.decoders.experts import (
    GATED,
    Experts,
    Mixture,
    Router,
)
from ullage.players.eager.training.architectures.decoders.llama import apart
from ullage.players.eager.training.architectures.norms import CenteredNorm, Norm
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.convolution import convolve
from ullage.players.eager.training.eager.indexing import choose, repeat, select
from ullage.players.eager.training.eager.module import Module, parameter
from ullage.players.eager.training.eager.reductions import total
from ullage.players.eager.training.eager.routing import fill
from ullage.players.eager.training.eager.shapes import pad, view_any
from ullage.players.eager.training.eager.tensor import BOOL, FLOAT32, DType, Tensor, empty

_CHUNK = 64  # chunk_size of torch_chunk_gated_delta_rule


class GatedAttention(base.Attention):
    """Qwen3_5Attention: queries have a gate for what they find, and part of a head is rotated."""

    query_parts = 2

    def __call__(self, x: Tensor, context: base.Context) -> Tensor:
        width, table = self.head_dim, context.tables[self.kind]
        query, gate = F.split(apart(self.q_proj(x), 2 * width), (width, width))
        gate = F.reshape(gate, (*x.shape[:2], gate.shape[2] * width))
        query = F.transpose(self.q_norm(query), 1, 2)
        key = F.transpose(self.k_norm(apart(self.k_proj(x), width)), 1, 2)
        value = rotary.split_heads(self.v_proj(x), width)
        query, key = rotary.rotate_part(query, table), rotary.rotate_part(key, table)
        out = rotary.join_heads(self.attend(query, key, value, context.masks[self.kind]))
        out = F.mul(out, sigmoid(gate))
        return self.o_proj(out)


def _unit(x: Tensor) -> Tensor:
    """l2norm."""
    return F.mul(x, F.rsqrt(F.shift(total(F.mul(x, x)))))


def sigmoid(x: Tensor) -> Tensor:
    """x.sigmoid() or x.exp(): saves its result."""
    return F.elementwise(x, saves_input=False, saves_output=True)


exp = sigmoid


class GatedHeadNorm(Module):
    """Qwen3_5RMSNormGated: each head's, then its gate in float32."""

    def __init__(self, parts: base.Parts, width: int) -> None:
        self.weight = parameter(parts.arena, width, dtype=parts.dtype)

    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        dtype = x.dtype
        x = F.to(x, FLOAT32)
        variance = F.mean(F.pow2(x))
        x = F.mul(x, F.rsqrt(F.shift(variance)))
        x = F.mul(self.weight, F.to(x, dtype))
        x = F.mul(x, F.elementwise(F.to(gate, FLOAT32)))
        return F.to(x, dtype)


def _widen(x: Tensor, dtype: DType = FLOAT32) -> Tensor:
    """transpose(1, 2).to(dtype, memory_format=torch.contiguous_format): copied if it is cast."""
    x = F.transpose(x, 1, 2)
    return x if x.dtype is dtype else F.to(x, dtype).lay_out(is_permuted=False)


class GatedDeltaNet(Module):
    """Qwen3_5GatedDeltaNet."""

    def __init__(self, parts: base.Parts) -> None:
        hidden, arena, dtype = parts.config.number("hidden_size"), parts.arena, parts.dtype
        self.state = state = delta_net(parts.config)
        self.values = values = state.heads * state.rows
        self.keys = (state.channels - values) // 2
        self.dt_bias = parameter(arena, state.heads, dtype=dtype)
        self.a_log = parameter(arena, state.heads, dtype=dtype)
        self.conv1d = parameter(arena, state.channels, 1, state.steps + 1, dtype=dtype)
        self.norm = GatedHeadNorm(parts, state.rows)
        self.out_proj = parts.linear(values, hidden)
        self.add_projections(parts, hidden)

    def add_projections(self, parts: base.Parts, hidden: int) -> None:
        """Adds the first projections of the hidden states."""
        self.in_proj_qkv = parts.linear(hidden, self.state.channels)
        self.in_proj_z = parts.linear(hidden, self.values)
        self.in_proj_b = parts.linear(hidden, self.state.heads)
        self.in_proj_a = parts.linear(hidden, self.state.heads)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
        """Queries, keys and values joined; the gate; b and a; and what variables hold beside them,
        of which the first three until the convolution has run.
        """
        mixed = F.transpose(self.in_proj_qkv(x), 1, 2)
        return mixed, self.in_proj_z(x), self.in_proj_b(x), self.in_proj_a(x), []

    def __call__(self, x: Tensor) -> Tensor:
        state = self.state
        batch, length, _ = x.shape
        mixed, gate, b, a, variables = self.project(x)
        mixed = convolve(mixed, self.conv1d, padding=state.steps)
        mixed = F.elementwise(F.narrow(mixed, 2, length))
        mixed = F.transpose(mixed, 1, 2)
        query, key, value = F.split(mixed, (self.keys, self.keys, self.values))
        del variables[:3]
        shape = (batch, length, self.keys // state.columns, state.columns)
        query, key = view_any(query, shape), view_any(key, shape)
        value = view_any(value, (batch, length, state.heads, state.rows))
        beta = sigmoid(b)
        decay = F.neg(exp(F.to(self.a_log, FLOAT32)))
        decay = F.mul(decay, F.elementwise(F.add(F.to(a, FLOAT32), self.dt_bias)))
        out = self._look_back(query, key, value, decay, beta)
        out = F.reshape(out, (batch * length * state.heads, state.rows))
        out = self.norm(out, F.reshape(gate, out.shape))
        return self.out_proj(F.view(out, (batch, length, self.values)))

    def _look_back(
        self, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor
    ) -> Tensor:
        """torch_chunk_gated_delta_rule: (batch, length, heads, width) each, decay and beta of a
        head without the width.
        """
        heads, dtype = self.state.heads, query.dtype
        batch, length = query.shape[:2]
        chunks = -(-length // _CHUNK)
        if query.shape[2] != heads:
            query, key = repeat(query, 2, heads), repeat(key, 2, heads)
        query, key, value, beta, decay = [_widen(x) for x in (query, key, value, beta, decay)]
        query, key = _unit(query), _unit(key)
        query = F.scale(query)
        padded = (batch, heads, chunks * _CHUNK)
        query, key, value = (pad(x, (*padded, x.shape[3])) for x in (query, key, value))
        beta, decay = (pad(x, padded) for x in (beta, decay))
        new_value = F.mul(value, view_any(beta, (*padded, 1)))
        new_key = F.mul(key, view_any(beta, (*padded, 1)))
        apart = (batch, heads, chunks, _CHUNK)
        query, key, new_key, new_value = [
            view_any(x, (*apart, x.shape[3])) for x in (query, key, new_key, new_value)
        ]
        decay = view_any(decay, apart)
        # Within a chunk: the decay between every two steps, the system that condenses the updates
        # of all its steps into one, and its solutions for values and for keys.
        mask = empty(query.arena, (_CHUNK, _CHUNK), BOOL).like()
        sums = F.scale(F.contiguous(decay))  # cumsum
        steps = F.sub(view_any(sums, (*apart, 1)), view_any(sums, (*apart[:3], 1, _CHUNK)))
        steps = choose(mask, steps)
        steps = exp(steps)
        system = F.mul(F.matmul(new_key, key, is_second_transposed=True), steps)
        within = F.mul(F.matmul(query, key, is_second_transposed=True), steps)
        old_key = F.mul(new_key, view_any(exp(sums), (*apart, 1)))
        values = F.solve_triangular(system, new_value)
        keys = F.solve_triangular(system, old_key)
        # From chunk to chunk: what the state says of each step, and what the steps add to it.
        columns, width = self.state.columns, self.state.rows
        state = values.like((batch, heads, columns, width))
        out = values.like().lay_out(is_permuted=True)  # as a solution lies
        query = F.mul(query, view_any(exp(sums), (*apart, 1)))
        key = F.mul(key, view_any(exp(F.sub(F.narrow(sums, -1, 1), sums)), (*apart, 1)))
        left = view_any(exp(select(sums, 3)), (*apart[:3], 1, 1))
        for _ in range(chunks):
            new = F.sub(select(values, 2), F.matmul(select(keys, 2), state))
            read = F.matmul(select(query, 2), state)
            fill(out, F.add(read, F.matmul(select(within, 2), new)))
            state = F.add(
                F.mul(state, select(left, 2)),
                F.matmul(view_any(select(key, 2), (batch, heads, columns, _CHUNK)), new),
            )
        del state
        out = F.reshape(out, (*padded, width))
        return _widen(out if padded[2] == length else F.narrow(out, 2, length), dtype)


class JoinedDeltaNet(GatedDeltaNet):
    """Qwen3NextGatedDeltaNet: two projections, in which the parts of a key's head lie together."""

    def add_projections(self, parts: base.Parts, hidden: int) -> None:
        self.in_proj_qkvz = parts.linear(hidden, self.state.channels + self.values)
        self.in_proj_ba = parts.linear(hidden, 2 * self.state.heads)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
        wide, narrow = self.in_proj_qkvz(x), self.in_proj_ba(x)
        shape, rows, key = x.shape[:2], self.state.rows, self.state.columns
        heads = self.keys // key
        each = self.state.heads // heads
        joined = F.view(wide, (*shape, heads, 2 * (key + each * rows)))
        query, keys, value, gate = F.split(joined, (key, key, each * rows, each * rows))
        b, a = F.split(F.view(narrow, (*shape, heads, 2 * each)), (each, each))
        # Values, gate, b and a get the values' heads: copies, unless each key's head has one.
        sort = view_any if each == 1 else F.reshape
        value, gate = (sort(part, (*shape, self.state.heads, rows)) for part in (value, gate))
        b, a = (sort(part, (*shape, self.state.heads)) for part in (b, a))
        copies = [F.reshape(part, (*shape, self.keys)) for part in (query, keys)]
        copies.append(F.reshape(value, (*shape, self.values)))
        mixed = F.transpose(F.cat(copies, -1), 1, 2)
        return mixed, gate, b, a, [*copies, wide, narrow]


class DeltaMixture(Mixture):
    """Qwen3_5MoeSparseMoeBlock: beside the experts runs an MLP that a vector weighs."""

    def __init__(self, parts: base.Parts, sizes: Mlp) -> None:
        chosen = parts.config.number("num_experts_per_tok")
        router = Router(parts, sizes.experts, chosen, casts=True)
        super().__init__(router, Experts(parts, sizes.experts, sizes.width), GATED)
        self.shared_expert = base.GatedMLP(parts, sizes.shared)
        self.shared_expert_gate = parts.linear(parts.config.number("hidden_size"), 1)

    def __call__(self, x: Tensor) -> Tensor:
        shape = x.shape
        flat = F.view(x, (shape[0] * shape[1], shape[2]))
        shared = self.shared_expert(flat)
        weights, numbers = self.gate(flat)
        routed = self.experts(flat, weights, numbers)
        shared = F.mul(sigmoid(self.shared_expert_gate(flat)), shared)
        return F.view(F.add(routed, shared), shape)


class Qwen35(base.Decoder):
    """Qwen3_5ForCausalLM and Qwen3_5MoeForCausalLM."""

    recurrent: ClassVar[type[GatedDeltaNet]] = GatedDeltaNet
    attention: ClassVar[type[base.Attention]] = GatedAttention
    mixture: ClassVar[type[Mixture]] = DeltaMixture
    norm_kind: ClassVar[type[Norm]] = CenteredNorm

    @property
    def rotated(self) -> int:
        return int(self.parts.shape.head_dim * rotary.rotated_share(self.parts.config, 0.25))

    def tables(self, x: Tensor, kinds: list[str]) -> Mapping[str, rotary.Table]:
        batch, length = x.shape[:2]
        return {base.FULL: rotary.rotary_table(x, length, self.rotated, batch=batch)}


class Qwen3Next(Qwen35):
    """Qwen3NextForCausalLM, without the loss that balances its experts."""

    recurrent: ClassVar[type[GatedDeltaNet]] = JoinedDeltaNet

    def tables(self, x: Tensor, kinds: list[str]) -> Mapping[str, rotary.Table]:
        return base.Decoder.tables(self, x, kinds)
