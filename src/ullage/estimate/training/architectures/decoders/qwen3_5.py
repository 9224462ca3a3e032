"""Qwen3.5 and its mixture of experts, as transformers' modeling_qwen3_5.py and
modeling_qwen3_5_moe.py have them where the kernels of fla and causal_conv1d are not installed: the
gated delta rule is written out in PyTorch, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ullage.estimate.training.architectures import rotary
from ullage.estimate.training.architectures.decoders import decoder as base
from ullage.estimate.training.architectures.decoders.experts import GATED, Experts, Mixture, Router
from ullage.estimate.training.architectures.decoders.llama import apart
from ullage.estimate.training.architectures.norms import CenteredNorm, Norm
from ullage.estimate.training.eager import functional as F
from ullage.estimate.training.eager.convolution import convolve
from ullage.estimate.training.eager.indexing import choose, repeat, select
from ullage.estimate.training.eager.module import Module, parameter
from ullage.estimate.training.eager.reductions import total
from ullage.estimate.training.eager.routing import fill
from ullage.estimate.training.eager.shapes import pad, view_any
from ullage.estimate.training.eager.tensor import BOOL, FLOAT32, DType, Tensor, empty
from ullage.models.blocks import LINEAR, Mlp
from ullage.models.layers import Recurrent
from ullage.models.qwen3_next import DeltaNet, describe_delta_net

_CHUNK = 64  # chunk_size of torch_chunk_gated_delta_rule


def _describe(parts: base.Parts) -> DeltaNet:
    return describe_delta_net(parts.config, parts.config.model_type)


class GatedAttention(base.Attention):
    """Qwen3_5Attention: queries have a gate for what they find, and part of a head is rotated."""

    def __init__(self, parts: base.Parts, kind: str) -> None:
        super().__init__(parts, kind)
        shape = _describe(parts).shape
        has_bias = self.q_proj.bias is not None
        wide = 2 * shape.heads * shape.head_dim
        self.q_proj = parts.linear(shape.hidden, wide, has_bias=has_bias)
        self.q_norm = parts.norm(CenteredNorm, shape.head_dim)
        self.k_norm = parts.norm(CenteredNorm, shape.head_dim)

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

    def __init__(self, parts: base.Parts, state: Recurrent) -> None:
        hidden, arena, dtype = parts.config.number("hidden_size"), parts.arena, parts.dtype
        values = state.heads * state.rows
        self.state, self.values = state, values
        self.keys = (state.channels - values) // 2
        self.dt_bias = parameter(arena, state.heads, dtype=dtype)
        self.a_log = parameter(arena, state.heads, dtype=dtype)
        self.conv1d = parameter(arena, state.channels, 1, state.steps + 1, dtype=dtype)
        self.norm = GatedHeadNorm(parts, state.rows)
        self.out_proj = parts.linear(values, hidden)
        self.in_proj_qkv = parts.linear(hidden, state.channels)
        self.in_proj_z = parts.linear(hidden, values)
        self.in_proj_b = parts.linear(hidden, state.heads)
        self.in_proj_a = parts.linear(hidden, state.heads)

    def __call__(self, x: Tensor) -> Tensor:
        state = self.state
        batch, length, _ = x.shape
        mixed = F.transpose(self.in_proj_qkv(x), 1, 2)
        gate = self.in_proj_z(x)
        b, a = self.in_proj_b(x), self.in_proj_a(x)
        mixed = convolve(mixed, self.conv1d, padding=state.steps)
        mixed = F.elementwise(F.narrow(mixed, 2, length))
        mixed = F.transpose(mixed, 1, 2)
        query, key, value = F.split(mixed, (self.keys, self.keys, self.values))
        shape = (batch, length, self.keys // state.columns, state.columns)
        query, key = view_any(query, shape), view_any(key, shape)
        value = view_any(value, (batch, length, state.heads, state.rows))
        beta = sigmoid(b)
        decay = F.neg(exp(F.to(self.a_log, FLOAT32)))
        decay = F.mul(decay, F.elementwise(F.add(F.to(a, FLOAT32), self.dt_bias)))
        out = self._look_back(query, key, value, decay, beta)
        out = F.reshape(out, (batch * length * state.heads, state.rows))
        out = self.norm(out, F.view(gate, out.shape))
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


class DeltaMixture(Mixture):
    """Qwen3_5MoeSparseMoeBlock: beside the experts runs an MLP that a vector weighs."""

    def __init__(self, parts: base.Parts, sizes: Mlp) -> None:
        chosen = parts.config.number("num_experts_per_tok", default=8)
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


class DeltaLayer(base.Layer):
    """Qwen3_5DecoderLayer."""

    norm: ClassVar[type[Norm]] = CenteredNorm
    attention: ClassVar[type[base.Attention]] = GatedAttention

    def add_mixer(self, parts: base.Parts, kind: str) -> None:
        self.linear_attn = None
        if kind == LINEAR:
            self.linear_attn = GatedDeltaNet(parts, _describe(parts).state)
        else:
            super().add_mixer(parts, kind)

    def mix(self, x: Tensor, context: base.Context) -> Tensor:
        return super().mix(x, context) if self.linear_attn is None else self.linear_attn(x)

    def make_mlp(self, parts: base.Parts, sizes: Mlp) -> Module:
        return DeltaMixture(parts, sizes) if sizes.experts else base.GatedMLP(parts, sizes.width)


class Qwen35(base.Decoder):
    """Qwen3_5ForCausalLM and Qwen3_5MoeForCausalLM."""

    layer: ClassVar[type[base.Layer]] = DeltaLayer
    norm_kind: ClassVar[type[Norm]] = CenteredNorm

    def layer_kinds(self) -> list[str]:
        return list(_describe(self.parts).kinds)

    def sizes(self, place: int) -> Mlp:
        return _describe(self.parts).sizes

    @property
    def rotated(self) -> int:
        return int(
            _describe(self.parts).shape.head_dim * rotary.rotated_share(self.parts.config, 0.25)
        )

    def tables(self, x: Tensor, kinds: list[str]) -> Mapping[str, rotary.Table]:
        batch, length = x.shape[:2]
        return {base.FULL: rotary.rotary_table(x, length, self.rotated, batch=batch)}
