"""diffusers: a DiT-XL/2 on latents of 256 x 256 images, with an average of its weights."""

import torch
from diffusers import DDPMScheduler, DiTTransformer2DModel
from diffusers.training_utils import EMAModel
from figures import print_figures
from torch.nn.functional import mse_loss

STEPS, BATCH = 3, 16


def main() -> None:
    """Three steps."""
    torch.manual_seed(0)
    model = DiTTransformer2DModel(
        num_attention_heads=16, attention_head_dim=72, num_layers=28, out_channels=4
    ).to("cuda")
    average = EMAModel(model.parameters())
    schedule = DDPMScheduler()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        latents = torch.randn(BATCH, 4, 32, 32).to("cuda")
        labels = torch.randint(1000, (BATCH,)).to("cuda")
        noise = torch.randn_like(latents)
        times = torch.randint(1000, (BATCH,)).to("cuda")
        with torch.autocast("cuda", torch.bfloat16):
            noisy = schedule.add_noise(latents, noise, times)
            predicted = model(noisy, timestep=times, class_labels=labels).sample
        mse_loss(predicted.float(), noise).backward()
        optimizer.step()
        optimizer.zero_grad()
        average.step(model.parameters())
    print_figures(model, optimizer, num_steps=STEPS)


if __name__ == "__main__":
    main()
