"""Mask R-CNN of torchvision: fine-tuning as in its tutorial, then detection."""

import math
import sys

import torch
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone


def made_up_batch():
    images = [torch.rand(3, 200, 240).cuda() for _ in range(2)]
    targets = []
    for count in (2, 3):
        corner = torch.rand(count, 2) * 100
        boxes = torch.cat((corner, corner + 30 + 60 * torch.rand(count, 2)), dim=1)
        masks = torch.zeros(count, 200, 240, dtype=torch.uint8)
        for mask, (x0, y0, x1, y1) in zip(masks, boxes.int().tolist(), strict=True):
            mask[y0:y1, x0:x1] = 1
        labels = torch.randint(1, 3, (count,))
        target = {"boxes": boxes, "labels": labels, "masks": masks}
        targets.append({name: value.cuda() for name, value in target.items()})
    return images, targets


torch.manual_seed(0)
backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=3)
model = MaskRCNN(backbone, num_classes=3, min_size=200, max_size=240).cuda()
params = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.SGD(params, lr=0.005, momentum=0.9, weight_decay=0.0005)
model.train()
for step in range(3):
    images, targets = made_up_batch()
    losses = model(images, targets)
    total = sum(losses.values())
    value = total.item()
    if not math.isfinite(value):
        print(f"Loss is {value}, stopping training")
        sys.exit(1)
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    print(step, {name: round(loss.item(), 4) for name, loss in losses.items()})
model.eval()
with torch.no_grad():
    outputs = model(made_up_batch()[0])
print([len(output["boxes"]) for output in outputs], outputs[0]["masks"].shape)
