"""segmentation-models-pytorch: an FPN with Dice loss and its metrics of intersection over union."""

import segmentation_models_pytorch as smp
import torch

torch.manual_seed(0)
model = smp.Unet("resnet18", encoder_weights=None, in_channels=3, classes=4).cuda()
loss_fn = smp.losses.DiceLoss(smp.losses.MULTICLASS_MODE, from_logits=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
best = 0.0
for epoch in range(2):
    for phase in ("train", "valid"):
        model.train(phase == "train")
        counts = []
        for _ in range(2):
            image = torch.rand(4, 3, 96, 96).cuda()
            mask = torch.randint(0, 4, (4, 96, 96)).cuda()
            with torch.set_grad_enabled(phase == "train"):
                logits = model(image)
                loss = loss_fn(logits, mask)
            if phase == "train":
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
            predicted = logits.softmax(dim=1).argmax(dim=1)
            counts.append(smp.metrics.get_stats(predicted, mask, mode="multiclass", num_classes=4))
        tp, fp, fn, tn = (torch.cat(parts) for parts in zip(*counts, strict=True))
        iou = smp.metrics.iou_score(tp, fp, fn, tn, reduction="micro-imagewise")
        f1 = smp.metrics.f1_score(tp, fp, fn, tn, reduction="macro")
        print(f"epoch {epoch} {phase} loss {loss.item():.4f} iou {iou:.4f} f1 {f1:.4f}")
    if iou > best:
        best, weights = iou, {name: value.clone() for name, value in model.state_dict().items()}
model.load_state_dict(weights)
print(f"best {best:.4f}")
