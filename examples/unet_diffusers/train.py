"""Training steps of a diffusion model: diffusers' UNet2DConditionModel on latents, with DDPM noise.

The UNet has the shape of Stable Diffusion 1.5 at half its width, with random weights. Latents and
text embeddings are made up, as if a VAE and a text encoder had run before.

    python examples/unet_diffusers/train.py --batch-size 8
    ullage run --gpu rtx-4090 -- examples/unet_diffusers/train.py --batch-size 8 --checkpoint
"""

import argparse

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DConditionModel


def main() -> None:
    """Train for a few steps; one line per step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--latent-size", type=int, default=64, help="an eighth of the image's side")
    parser.add_argument("--width", type=int, default=160, help="channels of the first level")
    parser.add_argument("--checkpoint", action="store_true", help="recompute in backward")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-4)
    args = parser.parse_args()

    torch.manual_seed(0)
    width = args.width
    model = UNet2DConditionModel(
        sample_size=args.latent_size,
        block_out_channels=(width, 2 * width, 4 * width, 4 * width),
        cross_attention_dim=768,
    )
    if args.checkpoint:
        model.enable_gradient_checkpointing()
    model.to("cuda").train()
    scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    shape = (args.batch_size, model.config.in_channels, args.latent_size, args.latent_size)
    for step in range(args.steps):
        latents = torch.randn(shape, device="cuda")
        text = torch.randn(args.batch_size, 77, 768, device="cuda")
        noise = torch.randn_like(latents)
        timesteps = torch.randint(
            0, scheduler.config.num_train_timesteps, (args.batch_size,), device="cuda"
        )
        noisy = scheduler.add_noise(latents, noise, timesteps)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            predicted = model(noisy, timesteps, encoder_hidden_states=text).sample
        loss = F.mse_loss(predicted.float(), noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
