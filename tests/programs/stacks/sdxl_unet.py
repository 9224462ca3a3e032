"""diffusers: a UNet of the size of Stable Diffusion XL's, on latents of 1024 x 1024 images."""

import torch
from diffusers import DDPMScheduler, UNet2DConditionModel
from figures import print_figures
from torch.nn.functional import mse_loss

STEPS, BATCH = 3, 1


def make_unet() -> UNet2DConditionModel:
    """2.6 billion parameters."""
    return UNet2DConditionModel(
        sample_size=128,
        block_out_channels=(320, 640, 1280),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 10),
        attention_head_dim=(5, 10, 20),
        cross_attention_dim=2048,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    )


def main() -> None:
    """Three steps."""
    torch.manual_seed(0)
    unet = make_unet().to("cuda", torch.bfloat16)
    unet.enable_gradient_checkpointing()
    schedule = DDPMScheduler()
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-5)
    for _ in range(STEPS):
        latents = torch.randn(BATCH, 4, 128, 128).to("cuda", torch.bfloat16)
        text = torch.randn(BATCH, 77, 2048).to("cuda", torch.bfloat16)
        added = {
            "text_embeds": torch.randn(BATCH, 1280).to("cuda", torch.bfloat16),
            "time_ids": torch.tensor([[1024.0, 1024, 0, 0, 1024, 1024]] * BATCH).to("cuda"),
        }
        noise = torch.randn_like(latents)
        times = torch.randint(1000, (BATCH,), device="cuda")
        noisy = schedule.add_noise(latents, noise, times)
        predicted = unet(noisy, times, text, added_cond_kwargs=added).sample
        mse_loss(predicted.float(), noise.float()).backward()
        optimizer.step()
        optimizer.zero_grad()
    print_figures(unet, optimizer, num_steps=STEPS)


if __name__ == "__main__":
    main()
