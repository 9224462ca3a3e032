"""fastai's first lesson: a folder of images, a learner, one cycle."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from fastai.vision.all import ImageDataLoaders, Resize, accuracy, resnet18, vision_learner
from PIL import Image

random = np.random.default_rng(0)
torch.manual_seed(0)
with tempfile.TemporaryDirectory() as directory:
    for kind in ("cat", "dog"):
        for index in range(20):
            folder = Path(directory) / kind
            folder.mkdir(exist_ok=True)
            pixels = random.integers(0, 255, (96, 96, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{index}.png")
    loaders = ImageDataLoaders.from_folder(
        directory, valid_pct=0.2, seed=0, item_tfms=Resize(64), bs=8, num_workers=0, device="cuda"
    )
    learner = vision_learner(loaders, resnet18, metrics=accuracy, pretrained=False)
    with learner.no_bar():
        learner.to_fp16().fine_tune(1)
    print(learner.validate())
