"""The common parts of diffusers' denoisers: time embedding, attention, feed-forward, and loss."""

from __future__ import annotations

from typing import Final

from ullage.ground.errors import SpecError
from ullage.log.category import Category
from ullage.players.eager.training.architectures.encoder import gelu
from ullage.players.eager.training.architectures.model import parameter_dtype
from ullage.players.eager.training.architectures.rotary import join_heads, split_heads
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.attention import attend_fully
from ullage.players.eager.training.eager.images import mean_squared_error
from ullage.players.eager.training.eager.module import Linear, Module
from ullage.players.eager.training.eager.tensor import FLOAT32, INT64, DType, Tensor, empty
from ullage.players.eager.training.recipe import Recipe

FACTOR: Final = 8  # pixels on each side of a latent's element


def silu(x: Tensor) -> Tensor:
    """silu in one kernel; saves its input."""
    return F.elementwise(x)


def latents(arena: Arena, recipe: Recipe, channels: int) -> Tensor:
    """Encoded images: (batch, channels, side / 8, side / 8)."""
    if recipe.image is None:
        raise SpecError(
            "image: not given, and this model sees images; say how many pixels a side has"
        )
    if recipe.image % FACTOR:
        raise SpecError(f"image: found {recipe.image}, expected a multiple of {FACTOR}")
    side = recipe.image // FACTOR
    shape = (recipe.batch, channels, side, side)
    return empty(arena, shape, parameter_dtype(recipe), Category.INPUT)


def times(arena: Arena, recipe: Recipe) -> Tensor:
    """The timestep of each sample: (batch) int64."""
    return empty(arena, (recipe.batch,), INT64, Category.INPUT)


def denoising_loss(guess: Tensor, noise: Tensor) -> Tensor:
    """mse_loss(guess.float(), noise.float())."""
    return mean_squared_error(F.to(guess, FLOAT32), F.to(noise, FLOAT32))


class TimeEmbedding(Module):
    """Timesteps and TimestepEmbedding: sinusoids, then two linear layers."""

    def __init__(self, arena: Arena, inputs: int, outputs: int, dtype: DType) -> None:
        self.inputs = inputs
        self.dtype = dtype
        self.linear_1 = Linear(arena, inputs, outputs, dtype, has_bias=True)
        self.linear_2 = Linear(arena, outputs, outputs, dtype, has_bias=True)

    def __call__(self, numbers: Tensor) -> Tensor:
        return self.embed(empty(numbers.arena, (*numbers.shape[:1], self.inputs), self.dtype))

    def embed(self, sines: Tensor) -> Tensor:
        """Embeds numbers whose sinusoids are computed already."""
        return self.linear_2(silu(self.linear_1(sines)))


class Attention(Module):
    """Attention of diffusers with its sdpa processor: self-attention or cross-attention."""

    def __init__(
        self,
        arena: Arena,
        width: int,
        heads: int,
        dtype: DType,
        *,
        has_bias: bool = False,
        others: int | None = None,
        has_scale: bool = True,
    ) -> None:
        """width: the width of x, and of all heads together; others: the width of the other sequence
        for cross-attention; has_scale: divide by rescale_output_factor, even if it is 1.
        """
        self.has_scale = has_scale
        self.head_dim = width // heads
        self.to_q = Linear(arena, width, width, dtype, has_bias=has_bias)
        self.to_k = Linear(arena, others or width, width, dtype, has_bias=has_bias)
        self.to_v = Linear(arena, others or width, width, dtype, has_bias=has_bias)
        self.to_out = Linear(arena, width, width, dtype, has_bias=True)

    def __call__(self, x: Tensor, others: Tensor | None = None) -> Tensor:
        query = self.to_q(x)
        source = x if others is None else others
        key, value = self.to_k(source), self.to_v(source)
        query = split_heads(query, self.head_dim)
        key, value = split_heads(key, self.head_dim), split_heads(value, self.head_dim)
        x = join_heads(attend_fully(query, key, value))
        x = self.to_out(x)
        return F.scale(x) if self.has_scale else x


class FeedForward(Module):
    """FeedForward of diffusers: GEGLU, or a gelu between two linear layers."""

    def __init__(self, arena: Arena, width: int, dtype: DType, *, is_gated: bool) -> None:
        inner = 4 * width
        self.is_gated = is_gated
        self.proj = Linear(arena, width, 2 * inner if is_gated else inner, dtype, has_bias=True)
        self.out = Linear(arena, inner, width, dtype, has_bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        return self.out(self._between(x))

    def _between(self, x: Tensor) -> Tensor:
        x = self.proj(x)
        if not self.is_gated:
            return gelu(x)
        half = x.shape[-1] // 2
        x, gate = F.split(x, (half, half))
        return F.mul(x, gelu(gate))
