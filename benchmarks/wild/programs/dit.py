"""A diffusion transformer on the latents of a frozen VAE, with an average of its weights.

After the README of github.com/facebookresearch/DiT; the VAE is diffusers' with random weights.
"""

from copy import deepcopy

import torch
from diffusers import AutoencoderKL
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        nn.init.zeros_(self.modulation[1].weight)
        nn.init.zeros_(self.modulation[1].bias)

    def forward(self, x, c):
        s1, b1, g1, s2, b2, g2 = self.modulation(c)[:, None].chunk(6, dim=-1)
        h = self.norm(x) * (1 + s1) + b1
        x = x + g1 * self.attn(h, h, h, need_weights=False)[0]
        return x + g2 * self.mlp(self.norm(x) * (1 + s2) + b2)


class DiT(nn.Module):
    def __init__(self, size=16, channels=4, patch=2, width=384, heads=6, layers=6, classes=10):
        super().__init__()
        self.patch = nn.Conv2d(channels, width, patch, patch)
        self.places = nn.Parameter(torch.randn(1, (size // patch) ** 2, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(classes + 1, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.final = nn.Linear(width, patch * patch * 2 * channels)
        nn.init.zeros_(self.final.weight)
        self.classes = classes

    def forward(self, x, t, y):
        frequencies = torch.exp(-9.2 * torch.arange(128, device=x.device) / 128)
        angles = t[:, None].float() * frequencies
        drop = torch.rand(len(y), device=y.device) < 0.1
        c = self.time(torch.cat((angles.cos(), angles.sin()), -1))
        c = c + self.label(torch.where(drop, self.classes, y))
        h = self.patch(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            h = block(h, c)
        side = x.shape[-1] // 2
        out = self.final(h).view(len(x), side, side, 2, 2, -1)
        return out.permute(0, 5, 1, 3, 2, 4).reshape(len(x), -1, x.shape[-1], x.shape[-1])


@torch.no_grad()
def update_ema(ema, model, decay=0.9999):
    for average, value in zip(ema.parameters(), model.parameters(), strict=True):
        average.mul_(decay).add_(value.data, alpha=1 - decay)


def main():
    torch.manual_seed(0)
    model = DiT().cuda()
    ema = deepcopy(model)
    for p in ema.parameters():
        p.requires_grad_(False)
    vae = AutoencoderKL(
        block_out_channels=(32, 64, 64, 64), layers_per_block=1, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
    ).cuda().eval()  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0)
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0).cuda()
    update_ema(ema, model, decay=0)
    model.train()
    ema.eval()
    running, steps = 0.0, 0
    for step in range(6):
        images = torch.rand(8, 3, 128, 128).cuda() * 2 - 1
        y = torch.randint(0, 10, (8,)).cuda()
        with torch.no_grad():
            x = vae.encode(images).latent_dist.sample().mul_(0.18215)
        t = torch.randint(0, 1000, (8,), device="cuda")
        noise, alpha = torch.randn_like(x), alphas[t][:, None, None, None]
        predicted, _ = model(alpha.sqrt() * x + (1 - alpha).sqrt() * noise, t, y).chunk(2, dim=1)
        loss = F.mse_loss(predicted, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update_ema(ema, model)
        running, steps = running + loss.item(), steps + 1
        print(f"step {step}: train loss {running / steps:.4f}")


main()
