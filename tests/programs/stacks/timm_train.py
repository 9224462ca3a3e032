"""Image classification in the manner of timm's train script: mixup, averaged weights, schedule."""

import timm
import torch
from figures import print_figures
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3, NativeScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH = 3, 64


def main() -> None:
    """One short epoch and an evaluation of the averaged weights."""
    torch.manual_seed(0)
    model = timm.create_model("convnext_tiny", drop_path_rate=0.1).to("cuda")
    model = model.to(memory_format=torch.channels_last)
    average = ModelEmaV3(model, decay=0.9998)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    schedule, _ = create_scheduler_v2(optimizer, sched="cosine", num_epochs=3, warmup_epochs=1)
    scaler, loss_of = NativeScaler(), SoftTargetCrossEntropy()
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=1000)
    images = torch.randint(256, (STEPS * BATCH, 3, 224, 224), dtype=torch.uint8)
    data = TensorDataset(images, torch.randint(1000, (STEPS * BATCH,)))
    for step, (image, label) in enumerate(DataLoader(data, batch_size=BATCH, pin_memory=True)):
        image = image.to("cuda", non_blocking=True).float().div(255)
        image, target = mixup(image, label.to("cuda", non_blocking=True))
        with torch.autocast("cuda", torch.float16):
            loss = loss_of(model(image.contiguous(memory_format=torch.channels_last)), target)
        optimizer.zero_grad()
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        average.update(model)
        schedule.step_update(step)
    with torch.no_grad(), torch.autocast("cuda", torch.float16):
        average(image)
    print_figures(nn.ModuleList([model, average.module]), optimizer, num_steps=STEPS)


if __name__ == "__main__":
    main()
