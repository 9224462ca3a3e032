"""The convolutional blocks of diffusers' UNet and autoencoder."""

from __future__ import annotations

from typing import Final

from ullage.players.eager.training.architectures.images.diffusion import silu
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.convolution import Conv
from ullage.players.eager.training.eager.images import pad, upsample
from ullage.players.eager.training.eager.module import Linear, Module
from ullage.players.eager.training.eager.norms import GroupNorm
from ullage.players.eager.training.eager.shapes import view_any
from ullage.players.eager.training.eager.tensor import DType, Tensor

_SIZE: Final = 3  # the kernel size


class ResnetBlock(Module):
    """ResnetBlock2D: two convolutions with norms, the time embedding between them, a shortcut."""

    def __init__(
        self,
        arena: Arena,
        inputs: int,
        outputs: int,
        dtype: DType,
        *,
        groups: int,
        times: int | None = None,
    ) -> None:
        """times: the width of the time embedding; None: there is none."""
        self.norm1 = GroupNorm(arena, groups, inputs, dtype)
        self.conv1 = Conv(arena, inputs, outputs, _SIZE, dtype, padding=1)
        self.time_emb_proj = None
        if times is not None:
            self.time_emb_proj = Linear(arena, times, outputs, dtype, has_bias=True)
        self.norm2 = GroupNorm(arena, groups, outputs, dtype)
        self.conv2 = Conv(arena, outputs, outputs, _SIZE, dtype, padding=1)
        self.conv_shortcut = None
        if inputs != outputs:
            self.conv_shortcut = Conv(arena, inputs, outputs, 1, dtype)

    def __call__(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        out = silu(self.norm1(x))
        out = self.conv1(out)
        if self.time_emb_proj is not None and time is not None:
            time = silu(time)
            time = self.time_emb_proj(time)
            time = view_any(time, (*time.shape, 1, 1))
            out = F.add(out, time)
        out = self.norm2(out)
        out = silu(out)
        out = self.conv2(out)
        if self.conv_shortcut is not None:
            x = self.conv_shortcut(F.contiguous(x))
        return F.scale(F.add(x, out))  # divides by output_scale_factor, even if it is 1


class Downsample(Module):
    """Downsample2D: a convolution with stride 2, and padding on all sides or on two."""

    def __init__(self, arena: Arena, width: int, dtype: DType, *, is_padded: bool = True) -> None:
        self.is_padded = is_padded
        self.conv = Conv(arena, width, width, _SIZE, dtype, stride=2, padding=int(is_padded))

    def __call__(self, x: Tensor) -> Tensor:
        return self.conv(x if self.is_padded else pad(x, 1))


class Upsample(Module):
    """Upsample2D: nearest-neighbour interpolation by 2, then a convolution."""

    def __init__(self, arena: Arena, width: int, dtype: DType) -> None:
        self.conv = Conv(arena, width, width, _SIZE, dtype, padding=1)

    def __call__(self, x: Tensor) -> Tensor:
        x = upsample(x)
        return self.conv(x)
