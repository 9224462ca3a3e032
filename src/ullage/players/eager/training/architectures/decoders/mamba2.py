"""Mamba 2, as transformers' modeling_mamba2.py has it where the kernels of mamba_ssm and
causal_conv1d are not installed: the scan is written out in PyTorch, and keeps far more.
"""

from __future__ import annotations

from typing import NamedTuple

from ullage.facts.families.config import Config
from ullage.facts.families.hybrids import mamba2_state
from ullage.facts.families.layers import Recurrent
from ullage.players.eager.training.architectures.losses import causal_loss
from ullage.players.eager.training.architectures.model import LanguageModel, parameter_dtype
from ullage.players.eager.training.architectures.norms import RMSNorm
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager import module as nn
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.convolution import convolve
from ullage.players.eager.training.eager.indexing import choose, repeat
from ullage.players.eager.training.eager.shapes import pad, permuted, view_any
from ullage.players.eager.training.eager.tensor import BOOL, FLOAT32, DType, Tensor, empty
from ullage.players.eager.training.recipe import Recipe


class MixerSizes(NamedTuple):
    """Sizes of a mixer.

    Attributes:
        chunk: steps that the scan takes together.
        normed: number of groups of channels that are normalized separately.
    """

    hidden: int
    state: Recurrent
    chunk: int
    has_bias: bool
    has_conv_bias: bool
    normed: int


def read_mixer(config: Config) -> MixerSizes:
    """The sizes of a model's mixers."""
    state = mamba2_state(config)
    return MixerSizes(
        config.number("hidden_size"), state, config.number("mamba_chunk_size"),
        config.flag("mamba_proj_bias", default=False), config.flag("mamba_conv_bias", default=True),
        1 if config.model_type == "mamba2" else state.groups,
    )  # fmt: skip


class GatedNorm(nn.Module):
    """MambaRMSNormGated: in float32; of hybrids, whose groups of channels have a norm each."""

    def __init__(self, arena: Arena, width: int, dtype: DType, groups: int = 1) -> None:
        self.groups = groups
        self.weight = nn.parameter(arena, width, dtype=dtype)

    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        dtype = x.dtype
        x = F.to(x, FLOAT32)
        x = F.mul(x, F.elementwise(F.to(gate, FLOAT32)))
        shape = x.shape
        if self.groups > 1:
            x = F.view(x, (*shape[:-1], self.groups, shape[-1] // self.groups))
        variance = F.mean(F.pow2(x))
        x = F.mul(x, F.rsqrt(F.shift(variance)))
        if self.groups > 1:
            x = F.view(x, shape)
        return F.mul(self.weight, F.to(x, dtype))


class Mixer(nn.Module):
    """Mamba2Mixer."""

    def __init__(self, arena: Arena, sizes: MixerSizes, dtype: DType) -> None:
        self.sizes, state, has_bias = sizes, sizes.state, sizes.has_bias
        outputs = state.channels + state.convolved + state.heads
        self.conv_weight = nn.parameter(arena, state.convolved, 1, state.steps + 1, dtype=dtype)
        self.conv_bias = None
        if sizes.has_conv_bias:
            self.conv_bias = nn.parameter(arena, state.convolved, dtype=dtype)
        self.in_proj = nn.Linear(arena, sizes.hidden, outputs, dtype, has_bias=has_bias)
        self.dt_bias = nn.parameter(arena, state.heads, dtype=dtype)
        self.a_log = nn.parameter(arena, state.heads, dtype=dtype)
        self.norm = GatedNorm(arena, state.channels, dtype, sizes.normed)
        self.d = nn.parameter(arena, state.heads, dtype=dtype)
        self.out_proj = nn.Linear(arena, state.channels, sizes.hidden, dtype, has_bias=has_bias)

    def __call__(self, x: Tensor) -> Tensor:
        state = self.sizes.state
        batch, length, _ = x.shape
        projected = self.in_proj(x)
        decay = F.neg(
            F.elementwise(F.to(self.a_log, FLOAT32), saves_input=False, saves_output=True)
        )
        gate, wide, dt = F.split(projected, (state.channels, state.convolved, state.heads))
        wide = F.transpose(wide, 1, 2)
        wide = convolve(wide, self.conv_weight, self.conv_bias, padding=state.steps)
        wide = F.elementwise(F.narrow(wide, 2, length))
        wide = F.transpose(wide, 1, 2)
        shared = state.groups * state.columns
        x, b, c = F.split(wide, (state.channels, shared, shared))
        x = view_any(x, (batch, length, state.heads, state.rows))
        b = view_any(b, (batch, length, state.groups, state.columns))
        c = view_any(c, (batch, length, state.groups, state.columns))
        out = self._scan(x, dt, decay, b, c)
        out = F.reshape(out, (batch, length, state.channels))
        out = self.norm(out, gate)  # as the scan, in float32
        return self.out_proj(F.to(out, self.out_proj.weight.dtype))

    def _scan(self, x: Tensor, dt: Tensor, decay: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """mamba2_chunk_scan: within chunks as attention is, between them by their states."""
        batch, length, heads, width = x.shape
        chunk = self.sizes.chunk
        chunks = -(-length // chunk)
        dt = F.elementwise(F.elementwise(F.add(dt, self.dt_bias)))  # softplus, clamp
        x = F.to(x, FLOAT32)
        b = repeat(F.to(b, FLOAT32), 2, heads)
        c = repeat(F.to(c, FLOAT32), 2, heads)
        padded = (batch, chunks * chunk, heads)
        residual = F.mul(view_any(self.d, (heads, 1)), pad(x, (*padded, width)))
        x = F.mul(x, view_any(F.to(dt, FLOAT32), (batch, length, heads, 1)))
        a = F.mul(decay, F.to(dt, FLOAT32))
        x, a, b, c = (pad(tensor, (*padded, *tensor.shape[3:])) for tensor in (x, a, b, c))
        every = batch * chunks * heads
        sums = F.scale(F.contiguous(permuted(a, (batch, heads, chunks, chunk))))  # cumsum
        within = self._attend(x, sums, b, c, every)
        between = self._carry(x, sums, b, c, chunks)
        out = F.contiguous(_lie(F.add(within, between)))
        out = F.view(out, (batch, chunks * chunk, heads, width))
        out = F.add(out, residual)
        return out if chunks * chunk == length else F.narrow(out, 1, length)

    def _attend(self, x: Tensor, sums: Tensor, b: Tensor, c: Tensor, every: int) -> Tensor:
        """Outputs of each chunk from its own inputs, as (batch * chunks * heads, chunk, width)."""
        state, chunk = self.sizes.state, self.sizes.chunk
        steps = _segment_sum(sums, chunk)
        steps = F.elementwise(steps, saves_input=False, saves_output=True)
        scores = F.matmul(
            permuted(c, (every, chunk, state.columns)),
            permuted(b, (every, chunk, state.columns)),
            is_second_transposed=True,
        )
        weights = F.mul(scores, view_any(steps, (every, chunk, chunk)))
        return F.matmul(weights, permuted(x, (every, chunk, state.rows)))

    def _carry(self, x: Tensor, sums: Tensor, b: Tensor, c: Tensor, chunks: int) -> Tensor:
        """Outputs of each chunk from the state that those before it leave, in the same shape."""
        state, chunk = self.sizes.state, self.sizes.chunk
        batch, heads = x.shape[0], state.heads
        every, inside = batch * chunks * heads, state.rows * state.columns
        last = F.narrow(sums, -1, 1)
        left = F.elementwise(F.add(last, sums), saves_input=False, saves_output=True)
        decayed = F.mul(b, view_any(left, (batch, chunks * chunk, heads, 1)))
        states = F.matmul(
            permuted(x, (every, state.rows, chunk)),
            permuted(decayed, (every, chunk, state.columns)),
        )
        states = view_any(states, (batch, chunks, heads, inside))
        states = F.cat((states.like((batch, 1, heads, inside)), states), 1)
        ends = pad(view_any(last, (batch, heads, chunks)), (batch, heads, chunks + 1))
        steps = _segment_sum(ends, chunks + 1)
        steps = F.elementwise(steps, saves_input=False, saves_output=True)
        weights = view_any(steps, (batch * heads, chunks + 1, chunks + 1))
        states = F.matmul(weights, permuted(states, (batch * heads, chunks + 1, inside)))
        before = F.narrow(states, 1, chunks)
        out = F.matmul(
            permuted(c, (every, chunk, state.columns)),
            permuted(before, (every, state.columns, state.rows)),
        )
        grown = F.elementwise(sums, saves_input=False, saves_output=True)
        return F.mul(out, view_any(grown, (every, chunk, 1)))


def _lie(x: Tensor) -> Tensor:
    """(batch * chunks * heads, chunk, width) as (batch, steps, heads, width)."""
    return permuted(x, x.shape)


def _segment_sum(x: Tensor, chunk: int) -> Tensor:
    """segment_sum: sums from each step to each later one, masked before and after."""
    mask = empty(x.arena, (chunk, chunk), BOOL)
    wide = F.expand(view_any(x, (*x.shape, 1)), (*x.shape, chunk))
    wide = choose(mask, wide)
    wide = F.scale(wide)  # cumsum
    return choose(empty(x.arena, (chunk, chunk), BOOL), wide)


class Block(nn.Module):
    """Mamba2Block: the residual may be in float32."""

    def __init__(self, arena: Arena, config: Config, sizes: MixerSizes, dtype: DType) -> None:
        self.dtype = dtype
        self.is_wide = config.flag("residual_in_fp32", default=True)
        self.norm = RMSNorm(arena, sizes.hidden, dtype)
        self.mixer = Mixer(arena, sizes, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        residual = x
        x = self.norm(F.to(x, self.dtype))
        if self.is_wide:
            residual = F.to(residual, FLOAT32)
        x = self.mixer(x)
        return F.add(residual, x)


class Mamba2(LanguageModel):
    """Mamba2ForCausalLM."""

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        self.dtype = dtype = parameter_dtype(recipe)
        sizes, vocab = read_mixer(config), config.number("vocab_size")
        self.embeddings = nn.Embedding(arena, vocab, sizes.hidden, dtype)
        count = config.number("num_hidden_layers")
        self.layers = nn.Stack(arena, "layers", count, lambda: Block(arena, config, sizes, dtype))
        self.norm = RMSNorm(arena, sizes.hidden, dtype)
        is_tied = config.flag("tie_word_embeddings", default=False)
        weight = self.embeddings.weight if is_tied else None
        self.lm_head = nn.LMHead(arena, sizes.hidden, vocab, dtype, weight=weight)
        self.stacks = (self.layers,)

    def __call__(self, *inputs: Tensor) -> Tensor:
        tokens, labels = inputs
        x = self.layers(self.embeddings(tokens))
        x = self.norm(x)
        logits = self.lm_head(F.to(x, self.dtype))
        return causal_loss(logits, labels)
