"""denoising-diffusion-pytorch: its Trainer on a folder of images, EMA, samples, a checkpoint."""

import tempfile
from pathlib import Path

import numpy as np
from denoising_diffusion_pytorch import GaussianDiffusion, Trainer, Unet
from PIL import Image

random = np.random.default_rng(0)
with tempfile.TemporaryDirectory() as directory:
    images = Path(directory) / "images"
    images.mkdir()
    for index in range(104):
        pixels = random.integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(images / f"{index}.png")
    unet = Unet(dim=32, dim_mults=(1, 2, 4), flash_attn=False)
    diffusion = GaussianDiffusion(unet, image_size=32, timesteps=1000, sampling_timesteps=4)
    trainer = Trainer(
        diffusion, str(images), train_batch_size=8, train_lr=8e-5, train_num_steps=4,
        gradient_accumulate_every=2, ema_decay=0.995, amp=True, calculate_fid=False,
        save_and_sample_every=3, num_samples=4, results_folder=str(Path(directory) / "results"),
    )  # fmt: skip
    trainer.train()
    print(sorted(path.name for path in (Path(directory) / "results").iterdir()))
