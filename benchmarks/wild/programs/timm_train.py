"""timm as its training script uses it: mixup, an average of weights, validation by top-k."""

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, NativeScaler, accuracy

torch.manual_seed(42)
model = timm.create_model("resnet18", num_classes=10, drop_path_rate=0.1).cuda()
model = model.to(memory_format=torch.channels_last)
ema = ModelEmaV3(model, decay=0.9998)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
scheduler = CosineLRScheduler(optimizer, t_initial=3, warmup_t=1, warmup_lr_init=1e-5)
mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=10)
loss_fn, scaler = SoftTargetCrossEntropy(), NativeScaler()
best = None
for epoch in range(2):
    model.train()
    losses = AverageMeter()
    for _ in range(3):
        x, y = mixup(torch.rand(16, 3, 128, 128).cuda(), torch.randint(0, 10, (16,)).cuda())
        x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda"):
            loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        ema.update(model)
        torch.cuda.synchronize()
        losses.update(loss.item(), len(x))
    for name, evaluated in (("model", model), ("ema", ema.module)):
        evaluated.eval()
        top1, top5 = AverageMeter(), AverageMeter()
        with torch.no_grad(), torch.autocast("cuda"):
            for _ in range(2):
                target = torch.randint(0, 10, (16,)).cuda()
                output = evaluated(torch.rand(16, 3, 128, 128).cuda())
                acc1, acc5 = accuracy(output, target, topk=(1, 5))
                top1.update(acc1.item(), 16)
                top5.update(acc5.item(), 16)
        print(f"{name}: acc@1 {top1.avg:.2f} acc@5 {top5.avg:.2f}")
    scheduler.step(epoch + 1)
    if best is None or top1.avg > best:
        best = top1.avg
print(f"best {best:.2f}, loss {losses.avg:.4f}")
