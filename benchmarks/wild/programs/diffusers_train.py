"""Unconditional diffusion trained as diffusers' tutorial does: UNet, DDPM noise, EMA, a sample."""

import torch
from accelerate import Accelerator
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel
from torch.nn import functional as F

torch.manual_seed(0)
model = UNet2DModel(
    sample_size=32, in_channels=3, out_channels=3, layers_per_block=1,
    block_out_channels=(64, 128, 128), norm_num_groups=16,
    down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
)  # fmt: skip
scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
lr_scheduler = get_cosine_schedule_with_warmup(optimizer, 1, 6)
accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=1)
images = torch.utils.data.TensorDataset(torch.rand(48, 3, 32, 32) * 2 - 1)
loader = torch.utils.data.DataLoader(images, batch_size=8, shuffle=True)
model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, loader, lr_scheduler)
ema = EMAModel(model.parameters(), use_ema_warmup=True)
ema.to(accelerator.device)
for step, (clean,) in enumerate(loader):
    noise = torch.randn(clean.shape, device=clean.device)
    timesteps = torch.randint(0, 1000, (len(clean),), device=clean.device)
    noisy = scheduler.add_noise(clean, noise, timesteps)
    with accelerator.accumulate(model):
        loss = F.mse_loss(model(noisy, timesteps, return_dict=False)[0], noise)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
    ema.step(model.parameters())
    print(f"step {step} loss {loss.detach().item():.4f}")
ema.store(model.parameters())
ema.copy_to(model.parameters())
pipeline = DDPMPipeline(accelerator.unwrap_model(model), scheduler)
pipeline.set_progress_bar_config(disable=True)
images = pipeline(batch_size=2, num_inference_steps=4).images
print(len(images), images[0].size)
