"""The trainings of the sweeps: those of training.py, and of adapters, diffusion and checkpoints."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from training import CASES as PLAIN_CASES
from training import WIDTH, Case, ConvNet, Decoder, Gated, adamw, draw_images, draw_tokens, sgd

NUM_TIMES = 50


class Adapter(nn.Module):
    """A frozen linear layer with a trainable product of two small matrices beside it (LoRA)."""

    def __init__(self, linear, rank=2):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.a = nn.Linear(linear.in_features, rank, bias=False)
        self.b = nn.Linear(rank, linear.out_features, bias=False)

    def forward(self, x):
        """x is (batch, tokens, in_features), the result (batch, tokens, out_features)."""
        return self.linear(x) + self.b(F.dropout(self.a(x), 0.1, self.training))


class AdaptedLlama(Decoder):
    """A Llama of which only adapters of attention and of the feed-forward part train."""

    def __init__(self):
        super().__init__(norm=nn.RMSNorm, make_mlp=Gated)
        self.requires_grad_(False)
        for block in self.blocks:
            block.qkv, block.out = Adapter(block.qkv), Adapter(block.out)
            block.mlp.down = Adapter(block.mlp.down)


class Stage(nn.Module):
    """A part of a UNet: convolutions with the time added, then attention over all places."""

    def __init__(self, num_inputs, width):
        super().__init__()
        self.norm, self.norm2 = nn.GroupNorm(2, num_inputs), nn.GroupNorm(2, width)
        self.first = nn.Conv2d(num_inputs, width, 3, padding=1)
        self.time = nn.Linear(WIDTH, width)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.skip = nn.Conv2d(num_inputs, width, 1)
        self.norm3, self.qkv = nn.GroupNorm(2, width), nn.Conv2d(width, 3 * width, 1)
        self.out = nn.Conv2d(width, width, 1)

    def forward(self, x, time):
        """x is (batch, num_inputs, height, width), time (batch, WIDTH); as many places come out."""
        y = self.first(F.silu(self.norm(x))) + self.time(time)[:, :, None, None]
        x = self.skip(x) + self.second(F.dropout(F.silu(self.norm2(y)), 0.1))
        q, k, v = self.qkv(self.norm3(x)).flatten(2).transpose(1, 2)[:, None].chunk(3, -1)
        y = F.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2).reshape(x.shape)
        return x + self.out(y)


class UNet(nn.Module):
    """A denoiser of pictures with one half-size level."""

    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.stages = nn.ModuleList([Stage(4, 4), Stage(4, 8), Stage(12, 4)])
        self.head = nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, images, times):
        """The noise in images (batch, 3, height, width) at times (batch,), of their shape."""
        rates = torch.exp(torch.arange(WIDTH // 2) * (-math.log(1e4) / (WIDTH // 2)))
        angles = times[:, None] * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        down, middle, up = self.stages
        skipped = down(self.stem(images), time)
        x = F.interpolate(middle(F.avg_pool2d(skipped, 2), time), scale_factor=2)
        return self.head(up(torch.cat([x, skipped], 1), time))


def diffusion_loss(model, images, _):
    """The error of the noise at times that the step itself draws."""
    times = torch.randint(NUM_TIMES, (len(images),))
    noise = torch.randn_like(images)
    share = (1 - times / NUM_TIMES)[:, None, None, None]
    return F.mse_loss(model(share.sqrt() * images + (1 - share).sqrt() * noise, times), noise)


def with_checkpoints(model, *, use_reentrant):
    """A model whose own program checkpoints each of its blocks."""
    for block in model.blocks:
        inner = block.forward

        def forward(x, inner=inner):
            return checkpoint(inner, x, use_reentrant=use_reentrant)

        block.forward = forward
    return model


def draw_small_images():
    """A batch of pictures for the UNet."""
    return torch.randn(2, 3, 4, 4), torch.zeros(2)


CASES = {
    **PLAIN_CASES,
    "lora": Case(AdaptedLlama, adamw(foreach=True)),
    "lora accumulated": Case(AdaptedLlama, adamw(foreach=True), micro_batches=2),
    "unet": Case(UNet, adamw(foreach=True), draw_small_images, loss=diffusion_loss),
    "cnn reentrant": Case(
        lambda: with_checkpoints(ConvNet(), use_reentrant=True), sgd(foreach=True), draw_images
    ),
    "cnn not reentrant": Case(
        lambda: with_checkpoints(ConvNet(), use_reentrant=False), sgd(foreach=True), draw_images
    ),
    "gpt2 reentrant": Case(
        lambda: with_checkpoints(Decoder(), use_reentrant=True), adamw(foreach=True), draw_tokens
    ),
    "gpt2 not reentrant": Case(
        lambda: with_checkpoints(Decoder(), use_reentrant=False), adamw(foreach=True), draw_tokens
    ),
}
