"""DiT as in diffusers' DiTTransformer2DModel."""

from __future__ import annotations

from ullage.facts.families.config import Config
from ullage.log.category import Category
from ullage.players.eager.training.architectures.images.diffusion import (
    FACTOR,
    Attention,
    FeedForward,
    TimeEmbedding,
    denoising_loss,
    latents,
    silu,
    times,
)
from ullage.players.eager.training.architectures.model import (
    Model,
    labels,
    parameter_dtype,
    with_side,
)
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.convolution import Conv
from ullage.players.eager.training.eager.module import Embedding, Linear, Module, Stack
from ullage.players.eager.training.eager.shapes import view_any
from ullage.players.eager.training.eager.tensor import FLOAT32, DType, Tensor, empty
from ullage.players.eager.training.recipe import Recipe

_SINES = 256


class Conditioning(Module):
    """CombinedTimestepLabelEmbeddings, with one more label for "no class"."""

    def __init__(self, arena: Arena, labels: int, width: int, dtype: DType) -> None:
        self.times = TimeEmbedding(arena, _SINES, width, dtype)
        self.labels = Embedding(arena, labels + 1, width, dtype)

    def __call__(self, numbers: Tensor, classes: Tensor) -> Tensor:
        return F.add(self.times(numbers), self.labels(classes.like()))


class Block(Module):
    """BasicTransformerBlock with adaLN-Zero."""

    def __init__(self, arena: Arena, config: Config, dtype: DType) -> None:
        heads = config.number("num_attention_heads", default=16)
        width = heads * config.number("attention_head_dim", default=72)
        has_bias = config.flag("attention_bias", default=True)
        labels = config.number("num_embeds_ada_norm", default=1000)
        self.conditioning = Conditioning(arena, labels, width, dtype)
        self.modulation = Linear(arena, width, 6 * width, dtype, has_bias=True)
        self.attn1 = Attention(arena, width, heads, dtype, has_bias=has_bias)
        self.ff = FeedForward(arena, width, dtype, is_gated=False)

    def __call__(self, x: Tensor, numbers: Tensor, classes: Tensor) -> Tensor:
        width = x.shape[-1]
        emb = self.modulation(silu(self.conditioning(numbers, classes)))
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = F.split(emb, (width,) * 6)
        normed = modulate(F.layer_norm(x, None, None), scale, shift)
        out = self.attn1(normed)
        out = F.mul(view_any(gate, (x.shape[0], 1, width)), out)
        x = F.add(out, x)
        normed = F.layer_norm(x, None, None)
        normed = modulate(normed, scale_mlp, shift_mlp)
        out = self.ff(normed)
        out = F.mul(view_any(gate_mlp, (x.shape[0], 1, width)), out)
        return F.add(out, x)


def modulate(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """x * (1 + scale) + shift, with scale and shift for each sample."""
    shape = (scale.shape[0], 1, scale.shape[-1])
    return F.add(F.mul(x, F.shift(view_any(scale, shape))), view_any(shift, shape))


class DiT(Model):
    """DiTTransformer2DModel; the first channels of its output are the noise, and its loss is the
    mean squared error of that noise.
    """

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        self.dtype = dtype = parameter_dtype(recipe)
        heads = config.number("num_attention_heads", default=16)
        width = heads * config.number("attention_head_dim", default=72)
        self.side = config.number("sample_size", default=32)
        self.patch = config.number("patch_size", default=2)
        self.channels = config.number("in_channels", default=4)
        self.out_channels = config.number("out_channels", default=self.channels)
        self.proj = Conv(arena, self.channels, width, self.patch, dtype, stride=self.patch)
        count = (self.side // self.patch) ** 2
        self.positions = empty(arena, (1, count, width), FLOAT32, Category.BUFFER)
        num_layers = config.number("num_layers", default=28)
        self.blocks = Stack(arena, "blocks", num_layers, lambda: Block(arena, config, dtype))
        self.proj_out_1 = Linear(arena, width, 2 * width, dtype, has_bias=True)
        outputs = self.patch**2 * self.out_channels
        self.proj_out_2 = Linear(arena, width, outputs, dtype, has_bias=True)
        self.stacks = (self.blocks,)

    def inputs(self, arena: Arena, recipe: Recipe) -> tuple[Tensor, ...]:
        recipe = with_side(recipe, self.side * FACTOR)
        noisy = latents(arena, recipe, self.channels)
        noise = latents(arena, recipe, self.channels)
        return noisy, noise, times(arena, recipe), labels(arena, recipe)

    def __call__(self, *inputs: Tensor) -> Tensor:
        noisy, noise, numbers, classes = inputs
        guess = self.denoise(noisy, numbers, classes)
        return denoising_loss(F.narrow(guess, 1, self.channels), noise)

    def denoise(self, noisy: Tensor, numbers: Tensor, classes: Tensor) -> Tensor:
        """The noise in latents, and its variance."""
        x = self._embed(noisy)
        x = self.blocks(x, numbers, classes)
        conditioning = self.blocks.layers[0].conditioning(numbers, classes)
        width = x.shape[-1]
        shift, scale = F.split(self.proj_out_1(silu(conditioning)), (width, width))
        x = modulate(F.layer_norm(x, None, None), scale, shift)
        x = self.proj_out_2(x)
        x = F.contiguous(F.transpose(x, 1, 2))  # the patches as an image
        batch, _, side, _ = noisy.shape
        return F.view(x, (batch, self.out_channels, side, side))

    def _embed(self, noisy: Tensor) -> Tensor:
        """PatchEmbed: the positions are float32, and the sum is cast."""
        x = self.proj(noisy)
        batch, width = x.shape[:2]
        x = F.transpose(F.view(x, (batch, width, x.shape[2] * x.shape[3])), 1, 2)
        return F.to(F.add(x, self.positions), self.dtype)
