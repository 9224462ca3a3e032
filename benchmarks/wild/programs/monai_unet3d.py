"""MONAI's 3D segmentation: UNet, Dice loss, sliding windows at validation, the best metric kept."""

import numpy as np
import torch
from monai.data import CacheDataset, DataLoader, create_test_image_3d, decollate_batch
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from monai.transforms import (
    AsDiscrete,
    Compose,
    EnsureChannelFirstd,
    RandCropByPosNegLabeld,
    RandRotate90d,
    ScaleIntensityd,
)
from monai.utils import set_determinism

set_determinism(0)
rows = []
for _ in range(3):
    image, label = create_test_image_3d(64, 64, 64, num_seg_classes=1)
    rows.append({"image": image.astype(np.float32), "label": label.astype(np.float32)})
keys = ["image", "label"]
steps = [EnsureChannelFirstd(keys, channel_dim="no_channel"), ScaleIntensityd("image")]
crop = RandCropByPosNegLabeld(
    keys, label_key="label", spatial_size=(48, 48, 48), pos=1, neg=1, num_samples=2
)
train = DataLoader(
    CacheDataset(rows, Compose([*steps, crop, RandRotate90d(keys, prob=0.5)]), progress=False),
    batch_size=1, shuffle=True,
)  # fmt: skip
check = DataLoader(CacheDataset(rows[:2], Compose(steps), progress=False), batch_size=1)
model = UNet(3, 1, 2, channels=(8, 16, 32, 64), strides=(2, 2, 2), num_res_units=2).to("cuda")
loss_function = DiceCELoss(to_onehot_y=True, softmax=True)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
metric = DiceMetric(include_background=False, reduction="mean")
after = AsDiscrete(argmax=True, to_onehot=2), AsDiscrete(to_onehot=2)
best = -1
for epoch in range(2):
    model.train()
    for batch in train:
        image, label = batch["image"].to("cuda"), batch["label"].to("cuda")
        optimizer.zero_grad()
        loss = loss_function(model(image), label)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for batch in check:
            image, label = batch["image"].to("cuda"), batch["label"].to("cuda")
            out = sliding_window_inference(image, (48, 48, 48), 4, model)
            predicted = [after[0](one) for one in decollate_batch(out)]
            metric(y_pred=predicted, y=[after[1](one) for one in decollate_batch(label)])
        dice = metric.aggregate().item()
        metric.reset()
    if dice > best:
        best, best_epoch = dice, epoch
    print(f"epoch {epoch} loss {loss.item():.4f} dice {dice:.4f} best {best:.4f} at {best_epoch}")
