"""The autoencoder of Stable Diffusion as in diffusers' AutoencoderKL."""

from __future__ import annotations

from typing import Final

from ullage.facts.families.config import Config
from ullage.players.eager.training.architectures.images.diffusion import Attention, silu
from ullage.players.eager.training.architectures.images.residual import (
    Downsample,
    ResnetBlock,
    Upsample,
)
from ullage.players.eager.training.architectures.model import Model, images, parameter_dtype
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.convolution import Conv
from ullage.players.eager.training.eager.images import mean_squared_error
from ullage.players.eager.training.eager.module import Module, Stack
from ullage.players.eager.training.eager.norms import GroupNorm
from ullage.players.eager.training.eager.tensor import FLOAT32, DType, Tensor
from ullage.players.eager.training.recipe import Recipe

_HEADS: Final = 1


class PixelAttention(Module):
    """Attention of diffusers over pixels, with a group norm and a shortcut."""

    def __init__(self, arena: Arena, width: int, groups: int, dtype: DType) -> None:
        self.group_norm = GroupNorm(arena, groups, width, dtype)
        self.attention = Attention(arena, width, _HEADS, dtype, has_bias=True, has_scale=False)

    def __call__(self, x: Tensor) -> Tensor:
        residual = x
        batch, width, high, wide = x.shape
        x = self.group_norm(F.view(x, (batch, width, high * wide)))
        x = self.attention(F.transpose(x, 1, 2))
        x = F.view(F.transpose(x, 1, 2), (batch, width, high, wide))  # the memory is channels-last
        x = F.add(x, residual)
        return F.scale(x)  # divides by rescale_output_factor, even if it is 1


class Middle(Module):
    """UNetMidBlock2D: a residual block, attention, a residual block."""

    def __init__(self, arena: Arena, width: int, groups: int, dtype: DType) -> None:
        self.first = ResnetBlock(arena, width, width, dtype, groups=groups)
        self.attention = PixelAttention(arena, width, groups, dtype)
        self.second = ResnetBlock(arena, width, width, dtype, groups=groups)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.attention(x)
        return self.second(x)


class Level(Module):
    """DownEncoderBlock2D or UpDecoderBlock2D: residual blocks, then a change of resolution."""

    def __init__(
        self,
        arena: Arena,
        widths: tuple[int, int],
        count: int,
        groups: int,
        resize: Module | None,
        *,
        dtype: DType,
    ) -> None:
        inputs, width = widths
        self.resnets = [
            ResnetBlock(arena, width if place else inputs, width, dtype, groups=groups)
            for place in range(count)
        ]
        self.resize = resize

    def __call__(self, x: Tensor) -> Tensor:
        for resnet in self.resnets:
            x = resnet(x)
        return x if self.resize is None else self.resize(x)


class Half(Module):
    """Encoder or Decoder: a convolution, levels and the middle block, a norm, a convolution."""

    def __init__(self, arena: Arena, config: Config, dtype: DType, *, is_decoder: bool) -> None:
        groups = config.number("norm_num_groups", default=32)
        widths = config.row("block_out_channels")
        latent = config.number("latent_channels", default=4)
        layers = config.number("layers_per_block", default=1)
        inputs, outputs = config.number("in_channels", default=3), 2 * latent
        self.is_decoder = is_decoder
        if is_decoder:
            widths, layers = widths[::-1], layers + 1
            inputs, outputs = latent, config.number("out_channels", default=3)
        self.conv_in = Conv(arena, inputs, widths[0], 3, dtype, padding=1)
        self.levels: list[Stack] = []
        for place, width in enumerate(widths):
            is_last = place == len(widths) - 1
            pair = widths[max(place - 1, 0)], width

            def make(pair: tuple[int, int] = pair, is_last: bool = is_last) -> Level:  # noqa: FBT001
                resize: Module | None = None
                if not is_last and is_decoder:
                    resize = Upsample(arena, pair[1], dtype)
                elif not is_last:
                    resize = Downsample(arena, pair[1], dtype, is_padded=False)
                return Level(arena, pair, layers, groups, resize, dtype=dtype)

            self.levels.append(Stack(arena, "decoder" if is_decoder else "encoder", 1, make))
        deepest = widths[0] if is_decoder else widths[-1]
        self.middle = Middle(arena, deepest, groups, dtype)
        self.norm_out = GroupNorm(arena, groups, widths[-1], dtype)
        self.conv_out = Conv(arena, widths[-1], outputs, 3, dtype, padding=1)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        if self.is_decoder:
            x = self.middle(x)
        for level in self.levels:
            x = level(x)
        if not self.is_decoder:
            x = self.middle(x)
        x = self.norm_out(x)
        x = silu(x)
        return self.conv_out(x)


class VAE(Model):
    """AutoencoderKL; its loss is the mean squared error of the reconstructed image."""

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        dtype = parameter_dtype(recipe)
        self.latent = latent = config.number("latent_channels", default=4)
        self.channels = config.number("in_channels", default=3)
        self.encoder = Half(arena, config, dtype, is_decoder=False)
        self.decoder = Half(arena, config, dtype, is_decoder=True)
        self.quant_conv = self.post_quant_conv = None
        if config.flag("use_quant_conv", default=True):
            self.quant_conv = Conv(arena, 2 * latent, 2 * latent, 1, dtype)
        if config.flag("use_post_quant_conv", default=True):
            self.post_quant_conv = Conv(arena, latent, latent, 1, dtype)

    def inputs(self, arena: Arena, recipe: Recipe) -> tuple[Tensor, ...]:
        return (images(arena, recipe, self.channels),)

    def __call__(self, *inputs: Tensor) -> Tensor:
        (pictures,) = inputs
        x = self.encoder(pictures)
        if self.quant_conv is not None:
            x = self.quant_conv(x)
        x, _ = F.split(x, (self.latent, self.latent), 1)  # the mean; the variance is not used
        x = self.decode(x)
        return mean_squared_error(F.to(x, FLOAT32), F.to(pictures, FLOAT32))

    def decode(self, x: Tensor) -> Tensor:
        """The images of latents."""
        if self.post_quant_conv is not None:
            x = self.post_quant_conv(x)
        return self.decoder(x)
