"""Classification as torchvision's references train it: repeated metrics, label smoothing, EMA.

After the README of github.com/pytorch/vision, references/classification.
"""

import datetime
import time
from collections import defaultdict, deque

import torch
import torchvision
from torch import nn
from torchvision.transforms import v2


class SmoothedValue:
    def __init__(self):
        self.deque, self.total, self.count = deque(maxlen=20), 0.0, 0

    def update(self, value, n=1):
        self.deque.append(value)
        self.total, self.count = self.total + value * n, self.count + n

    def __str__(self):
        median = torch.tensor(list(self.deque)).median().item()
        return f"{median:.4f} ({self.total / self.count:.4f})"


def accuracy(output, target, topk=(1,)):
    with torch.inference_mode():
        pred = output.topk(max(topk), 1, True, True).indices.t()
        if target.ndim == 2:
            target = target.max(dim=1)[1]
        correct = pred.eq(target[None])
        sums = [correct[:k].flatten().sum(dtype=torch.float32) for k in topk]
        return [part * (100.0 / len(target)) for part in sums]


def main():
    torch.manual_seed(0)
    mix = v2.RandomChoice([v2.MixUp(num_classes=10), v2.CutMix(num_classes=10)])
    model = torchvision.models.mobilenet_v3_small(num_classes=10).cuda()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 2e-5}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    scaler = torch.amp.GradScaler("cuda")
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=1)
    main_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, main_scheduler], [1])
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99), use_buffers=True
    )
    meters, started = defaultdict(SmoothedValue), time.time()
    for epoch in range(2):
        model.train()
        for _ in range(3):
            images, target = mix(torch.rand(16, 3, 128, 128), torch.randint(0, 10, (16,)))
            images, target = images.cuda(non_blocking=True), target.cuda(non_blocking=True)
            with torch.amp.autocast("cuda"):
                output = model(images)
                loss = criterion(output, target)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            average.update_parameters(model)
            acc1, acc5 = accuracy(output, target, topk=(1, 5))
            meters["loss"].update(loss.item(), 16)
            meters["acc1"].update(acc1.item(), 16)
            meters["acc5"].update(acc5.item(), 16)
        scheduler.step()
        for evaluated in (model, average):
            evaluated.eval()
            with torch.inference_mode():
                output = evaluated(torch.rand(16, 3, 128, 128).cuda())
                acc1, acc5 = accuracy(output, torch.randint(0, 10, (16,)).cuda(), (1, 5))
                meters["val_acc1"].update(acc1.item(), 16)
        print(epoch, "  ".join(f"{name}: {meter}" for name, meter in meters.items()))
    print(f"Training time {datetime.timedelta(seconds=int(time.time() - started))}")


main()
