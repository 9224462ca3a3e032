"""A denoising UNet with time embedding and cross attention; a frozen text encoder and an average of
the weights beside it.
"""

import copy
import itertools
import math

import torch
from torch import nn
from torch.nn import functional
from truth import Truth


class Residual(nn.Module):
    """Two convolutions that know the time."""

    def __init__(self, channels_in: int, channels: int, time_width: int) -> None:
        super().__init__()
        self.norm_1 = nn.GroupNorm(8, channels_in)
        self.conv_1 = nn.Conv2d(channels_in, channels, 3, padding=1)
        self.time = nn.Linear(time_width, channels)
        self.norm_2 = nn.GroupNorm(8, channels)
        self.conv_2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.skip = (
            nn.Conv2d(channels_in, channels, 1) if channels_in != channels else nn.Identity()
        )

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """x is (batch, channels, height, width), time (batch, time_width)."""
        y = self.conv_1(functional.silu(self.norm_1(x)))
        y = y + self.time(functional.silu(time))[:, :, None, None]
        return self.conv_2(functional.silu(self.norm_2(y))) + self.skip(x)


class CrossAttention(nn.Module):
    """Pixels look at the words of the prompt."""

    def __init__(self, channels: int, text_width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, channels)
        self.query = nn.Linear(channels, channels, bias=False)
        self.key_value = nn.Linear(text_width, 2 * channels, bias=False)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        """x is (batch, channels, height, width), text (batch, length, text_width)."""
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        q = self.query(pixels).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        split = self.key_value(text).unflatten(-1, (2, self.heads, -1))
        k, v = split.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v)
        y = self.out(y.transpose(1, 2).flatten(2))
        return x + y.transpose(1, 2).view_as(x)


class UNet(nn.Module):
    """Down, middle, up; what each level down keeps is joined on the way up."""

    def __init__(self, width: int = 64, text_width: int = 256) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 256))
        self.first = nn.Conv2d(4, width, 3, padding=1)
        widths = (width, 2 * width, 4 * width)
        self.down = nn.ModuleList(
            nn.ModuleDict(
                {
                    "residual": Residual(before, after, 256),
                    "attention": CrossAttention(after, text_width),
                    "shrink": nn.Conv2d(after, after, 3, 2, 1),
                }
            )
            for before, after in itertools.pairwise((width, *widths))
        )
        self.middle = Residual(widths[-1], widths[-1], 256)
        self.up = nn.ModuleList(
            nn.ModuleDict(
                {
                    "grow": nn.ConvTranspose2d(before, after, 2, 2),
                    "residual": Residual(2 * after, after, 256),
                    "attention": CrossAttention(after, text_width),
                }
            )
            for before, after in zip((4 * width, 4 * width, 2 * width), widths[::-1], strict=True)
        )
        self.last = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        """x is (batch, 4, height, width), t (batch,), text (batch, length, text_width)."""
        half = self.width // 2
        scale = torch.exp(torch.arange(half, device=x.device) * (-math.log(10_000) / half))
        angle = t[:, None] * scale
        time = self.time(torch.cat([angle.sin(), angle.cos()], dim=-1))
        x, kept = self.first(x), []
        for level in self.down:
            x = level["attention"](level["residual"](x, time), text)
            kept.append(x)
            x = level["shrink"](x)
        x = self.middle(x, time)
        for level in self.up:
            x = torch.cat([level["grow"](x), kept.pop()], dim=1)
            x = level["attention"](level["residual"](x, time), text)
        return self.last(functional.silu(x))


class TextEncoder(nn.Module):
    """Two layers of a transformer."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4096, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, batch_first=True) for _ in range(2)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids is (batch, length)."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return x


class Pipeline(nn.Module):
    """What is trained and what is not, under one root; never called itself."""

    def __init__(self) -> None:
        super().__init__()
        self.unet = UNet()
        self.text_encoder = TextEncoder().requires_grad_(False).eval()
        self.average = copy.deepcopy(self.unet).requires_grad_(False)


def main() -> None:
    """Three steps."""
    with Truth() as truth:
        pipeline = truth.owner(Pipeline().cuda())
        unet = pipeline.unet
        optimizer = truth.optimizer(torch.optim.AdamW(unet.parameters(), foreach=True))
        weights, average = list(unet.parameters()), list(pipeline.average.parameters())
        for _ in range(3):
            latents = truth.input(torch.randn(8, 4, 64, 64).cuda())
            ids = truth.input(torch.randint(4096, (8, 77)).cuda())
            with torch.no_grad():
                text = pipeline.text_encoder(ids)
            noise = truth.input(torch.randn_like(latents))
            t = truth.input(torch.randint(1000, (8,)).cuda())
            alpha = torch.cos(t / 1000)[:, None, None, None]
            noisy = truth.input(alpha * latents + (1 - alpha) * noise)
            loss = functional.mse_loss(unet(noisy, t, text), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch._foreach_lerp_(average, weights, 0.001)


if __name__ == "__main__":
    main()
