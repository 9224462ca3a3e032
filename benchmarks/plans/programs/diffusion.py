"""Train a diffusion model of diffusers with random weights for a few steps:
`diffusion.py MODEL BATCH`.

The UNet of Stable Diffusion XL on latents of 1024 x 1024 images, or DiT-XL/2 on those of 256 x 256.
Latents and embeddings are made up, as if a VAE and a text encoder had run before. Plain loops with
bf16 autocast and AdamW.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from diffusers import DDPMScheduler, DiTTransformer2DModel, UNet2DConditionModel
from torch import Tensor

STEPS, TRAIN_STEPS = 3, 1000


def sdxl_unet() -> Any:
    """The UNet of SDXL, as its config.json has it."""
    return UNet2DConditionModel(
        sample_size=128,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(320, 640, 1280),
        transformer_layers_per_block=(1, 2, 10),
        attention_head_dim=(5, 10, 20),
        cross_attention_dim=2048,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    )


def predict(model: Any, noisy: Tensor, times: Tensor) -> Tensor:
    """The noise that a model sees in latents."""
    batch = len(noisy)
    if isinstance(model, DiTTransformer2DModel):
        labels = torch.randint(0, 1000, (batch,), device="cuda")
        return model(noisy, timestep=times, class_labels=labels).sample[:, :4]
    text = torch.randn(batch, 77, 2048, device="cuda")
    more = {
        "text_embeds": torch.randn(batch, 1280, device="cuda"),
        "time_ids": torch.randn(batch, 6, device="cuda"),
    }
    return model(noisy, times, text, added_cond_kwargs=more).sample


def main() -> None:
    """A few steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=("sdxl-unet", "dit-xl"))
    parser.add_argument("batch", type=int)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = DiTTransformer2DModel(out_channels=8) if args.model == "dit-xl" else sdxl_unet()
    model.to("cuda").train()
    side = model.config.sample_size
    scheduler = DDPMScheduler(num_train_timesteps=TRAIN_STEPS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        latents = torch.randn(args.batch, 4, side, side, device="cuda")
        noise = torch.randn_like(latents)
        times = torch.randint(0, TRAIN_STEPS, (args.batch,), device="cuda")
        noisy = scheduler.add_noise(latents, noise, times)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.mse_loss(predict(model, noisy, times).float(), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
