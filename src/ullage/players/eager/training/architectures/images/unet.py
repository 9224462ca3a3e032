"""The UNet of Stable Diffusion as in diffusers' UNet2DConditionModel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ullage.facts.families.config import Config
from ullage.log.category import Category
from ullage.players.eager.training.architectures.images.diffusion import (
    Attention,
    FeedForward,
    TimeEmbedding,
    denoising_loss,
    latents,
    silu,
    times,
)
from ullage.players.eager.training.architectures.images.residual import (
    Downsample,
    ResnetBlock,
    Upsample,
)
from ullage.players.eager.training.architectures.model import Model, parameter_dtype
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.convolution import Conv
from ullage.players.eager.training.eager.module import LayerNorm, Linear, Module, Stack
from ullage.players.eager.training.eager.norms import GroupNorm
from ullage.players.eager.training.eager.tensor import DType, Tensor, empty
from ullage.players.eager.training.recipe import Recipe

_TEXT_TOKENS: Final = 77  # CLIP's sequence length
_TIME_IDS: Final = 6  # SDXL's input of sizes and crops
_POOLED: Final = 1280  # the width of SDXL's pooled text embedding


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes that all blocks share.

    Attributes:
        groups: the number of groups of a norm.
        text: the width of the text embedding.
        times: the width of the time embedding.
        is_linear: the config's use_linear_projection.
        layers: the config's layers_per_block.
    """

    groups: int
    text: int
    times: int
    is_linear: bool
    layers: int
    dtype: DType


class Block(Module):
    """BasicTransformerBlock: self-attention, cross-attention to the text, gated feed-forward."""

    def __init__(self, arena: Arena, width: int, heads: int, text: int, dtype: DType) -> None:
        self.norm1 = LayerNorm(arena, width, dtype)
        self.attn1 = Attention(arena, width, heads, dtype)
        self.norm2 = LayerNorm(arena, width, dtype)
        self.attn2 = Attention(arena, width, heads, dtype, others=text)
        self.norm3 = LayerNorm(arena, width, dtype)
        self.ff = FeedForward(arena, width, dtype, is_gated=True)

    def __call__(self, x: Tensor, text: Tensor) -> Tensor:
        normed = self.norm1(x)
        out = self.attn1(normed)
        x = F.add(out, x)
        normed = self.norm2(x)
        out = self.attn2(normed, text)
        x = F.add(out, x)
        normed = self.norm3(x)
        out = self.ff(normed)
        return F.add(out, x)


class Transformer(Module):
    """Transformer2DModel over pixels."""

    def __init__(self, arena: Arena, sizes: _Sizes, width: int, heads: int, count: int) -> None:
        dtype, text = sizes.dtype, sizes.text
        self.is_linear = sizes.is_linear
        self.norm = GroupNorm(arena, sizes.groups, width, dtype)
        self.proj_in = self._projection(arena, width, dtype)
        self.blocks = Stack(arena, "blocks", count, lambda: Block(arena, width, heads, text, dtype))
        self.proj_out = self._projection(arena, width, dtype)

    def _projection(self, arena: Arena, width: int, dtype: DType) -> Linear | Conv:
        if self.is_linear:
            return Linear(arena, width, width, dtype, has_bias=True)
        return Conv(arena, width, width, 1, dtype)

    def __call__(self, x: Tensor, text: Tensor) -> Tensor:
        residual = x
        batch, width, high, wide = x.shape
        x = self.norm(x)
        if not self.is_linear:
            x = self.proj_in(x)
        x = F.contiguous(F.transpose(F.view(x, (batch, width, high * wide)), 1, 2))
        if self.is_linear:
            x = self.proj_in(x)
        x = self.blocks(x, text)
        if self.is_linear:
            x = self.proj_out(x)
        x = F.view(F.contiguous(F.transpose(x, 1, 2)), (batch, width, high, wide))
        if not self.is_linear:
            x = self.proj_out(x)
        return F.add(x, residual)


class Level(Module):
    """A block of the UNet: in each step a residual block, then a transformer if the block has
    attention; at the end it changes the resolution.
    """

    def __init__(self, arena: Arena, sizes: _Sizes, widths: Sequence[int], width: int) -> None:
        """widths: the input channels of each residual block; width: the output channels."""
        self.resnets = [
            Stack(
                arena,
                "resnet",
                1,
                lambda inputs=inputs: ResnetBlock(
                    arena, inputs, width, sizes.dtype, groups=sizes.groups, times=sizes.times
                ),
            )
            for inputs in widths
        ]
        self.attentions: list[Transformer] = []
        self.resize: list[Module] = []

    def step(self, place: int, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        """Runs the residual block with index `place`, and its transformer."""
        x = self.resnets[place](x, time)
        return self.attentions[place](x, text) if self.attentions else x


class UNet(Model):
    """UNet2DConditionModel; its loss is the mean squared error of the noise."""

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        self.dtype = dtype = parameter_dtype(recipe)
        self.widths = config.row("block_out_channels")
        self.channels = config.number("in_channels", default=4)
        self.sizes = sizes = _Sizes(
            config.number("norm_num_groups", default=32),
            config.number("cross_attention_dim"),
            4 * self.widths[0],
            config.flag("use_linear_projection", default=False),
            config.number("layers_per_block", default=2),
            dtype,
        )
        self.plan = _Plan(config, len(self.widths))
        self.conv_in = Conv(arena, self.channels, self.widths[0], 3, dtype, padding=1)
        self.time_embedding = TimeEmbedding(arena, self.widths[0], sizes.times, dtype)
        self.has_sizes = config.text("addition_embed_type", default=None) == "text_time"
        self.add_embedding = None
        if self.has_sizes:
            inputs = config.number("projection_class_embeddings_input_dim")
            self.add_embedding = TimeEmbedding(arena, inputs, sizes.times, dtype)
        self.down = self._make_down(arena)
        self.middle = Level(arena, sizes, [self.widths[-1]] * 2, self.widths[-1])
        self.middle.attentions = [self._transformer(arena, len(self.widths) - 1)]
        self.up = self._make_up(arena)
        self.norm_out = GroupNorm(arena, sizes.groups, self.widths[0], dtype)
        outputs = config.number("out_channels", default=4)
        self.conv_out = Conv(arena, self.widths[0], outputs, 3, dtype, padding=1)

    def _transformer(self, arena: Arena, place: int) -> Transformer:
        width = self.widths[place]
        heads, count = self.plan.heads[place], self.plan.layers[place]
        return Transformer(arena, self.sizes, width, heads, count)

    def _make_down(self, arena: Arena) -> list[Level]:
        levels = []
        inputs = self.widths[0]
        for place, width in enumerate(self.widths):
            coming = [inputs] + [width] * (self.sizes.layers - 1)
            level = Level(arena, self.sizes, coming, width)
            if self.plan.attends_down[place]:
                level.attentions = [self._transformer(arena, place) for _ in coming]
            if place < len(self.widths) - 1:
                level.resize = [Downsample(arena, width, self.dtype)]
            levels.append(level)
            inputs = width
        return levels

    def _make_up(self, arena: Arena) -> list[Level]:
        levels = []
        before = self.widths[-1]
        for place in reversed(range(len(self.widths))):
            width, skipped = self.widths[place], self.widths[max(place - 1, 0)]
            count = self.sizes.layers + 1
            skips = [width] * (count - 1) + [skipped]
            coming = [before, *[width] * (count - 1)]
            both = [width + other for width, other in zip(coming, skips, strict=True)]
            level = Level(arena, self.sizes, both, width)
            if self.plan.attends_up[len(self.widths) - 1 - place]:
                level.attentions = [self._transformer(arena, place) for _ in both]
            if place:
                level.resize = [Upsample(arena, width, self.dtype)]
            levels.append(level)
            before = width
        return levels

    def inputs(self, arena: Arena, recipe: Recipe) -> tuple[Tensor, ...]:
        noisy = latents(arena, recipe, self.channels)
        noise = latents(arena, recipe, self.channels)
        numbers = times(arena, recipe)
        batch = recipe.batch
        shapes: list[tuple[int, ...]] = [(batch, _TEXT_TOKENS, self.sizes.text)]
        if self.has_sizes:
            shapes += [(batch, _POOLED), (batch, _TIME_IDS)]
        inputs = [empty(arena, shape, self.dtype, Category.INPUT) for shape in shapes]
        return noisy, noise, numbers, *inputs

    def __call__(self, *inputs: Tensor) -> Tensor:
        noisy, noise, numbers, text, *_ = inputs
        return denoising_loss(self.denoise(noisy, numbers, text), noise)

    def denoise(self, noisy: Tensor, numbers: Tensor, text: Tensor, *_: Tensor) -> Tensor:
        """The noise in latents."""
        time = self.time_embedding(numbers)
        if self.add_embedding is not None:
            sines = empty(time.arena, (noisy.shape[0], self.add_embedding.inputs), self.dtype)
            time = F.add(time, self.add_embedding.embed(sines))
        x = self.conv_in(noisy)
        x, skips = self._go_down(x, time, text)
        x = self.middle.resnets[0](x, time)
        x = self.middle.attentions[0](x, text)
        x = self.middle.resnets[1](x, time)
        x = self._go_up(x, skips, time, text)
        x = self.norm_out(x)
        x = silu(x)
        return self.conv_out(x)

    def _go_down(self, x: Tensor, time: Tensor, text: Tensor) -> tuple[Tensor, list[Tensor]]:
        skips = [x]
        for level in self.down:
            for place in range(len(level.resnets)):
                x = level.step(place, x, time, text)
                skips.append(x)
            for resize in level.resize:
                x = resize(x)
                skips.append(x)
        return x, skips

    def _go_up(self, x: Tensor, skips: list[Tensor], time: Tensor, text: Tensor) -> Tensor:
        for level in self.up:
            for place in range(len(level.resnets)):
                x = F.cat((x, skips.pop()), 1)
                x = level.step(place, x, time, text)
            for resize in level.resize:
                x = resize(x)
        return x


# The only values that this model supports for these fields.
_USUAL: Final = {
    "act_fn": "silu",
    "class_embed_type": None,
    "dual_cross_attention": False,
    "encoder_hid_dim": None,
    "mid_block_type": "UNetMidBlock2DCrossAttn",
    "only_cross_attention": False,
    "resnet_time_scale_shift": "default",
    "time_embedding_type": "positional",
    "addition_embed_type": "text_time",
}


class _Plan:
    """Which blocks have attention, and the heads and layers of the down blocks."""

    def __init__(self, config: Config, count: int) -> None:
        for name, usual in _USUAL.items():
            if config.fields.get(name) not in (None, False, usual):
                values = config.fields[name]
                raise config.wrong(name, f"found {values!r}, expected {usual!r} or nothing")
        down, up = config.row("down_block_types"), config.row("up_block_types")
        self.attends_down = [_attends(config, "down_block_types", kind) for kind in down]
        self.attends_up = [_attends(config, "up_block_types", kind) for kind in up]
        # For historical reasons attention_head_dim is the number of heads.
        heads = config.fields.get("num_attention_heads") or config.fields.get(
            "attention_head_dim", 8
        )
        layers = config.fields.get("transformer_layers_per_block", 1)
        self.heads = _for_each(config, "attention_head_dim", heads, count)
        self.layers = _for_each(config, "transformer_layers_per_block", layers, count)


def _attends(config: Config, name: str, kind: object) -> bool:
    known = ("CrossAttnDownBlock2D", "CrossAttnUpBlock2D", "DownBlock2D", "UpBlock2D")
    if kind not in known:
        raise config.wrong(name, f"found {kind!r}, expected {', '.join(known)}")
    return kind in known[:2]


def _for_each(config: Config, name: str, value: object, count: int) -> list[int]:
    if isinstance(value, int):
        return [value] * count
    if isinstance(value, list | tuple) and len(value) == count:
        return [int(number) for number in value]
    raise config.wrong(name, f"found {value!r}, expected a number, or {count} of them")
