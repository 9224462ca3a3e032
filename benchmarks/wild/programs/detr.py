"""DETR: objects as a set, matched to the truth by the Hungarian algorithm.

After the paper (arXiv:2005.12872) and the README of github.com/facebookresearch/detr.
"""

import torch
import torchvision
from scipy.optimize import linear_sum_assignment
from torch import nn
from torch.nn import functional as F
from torchvision.ops import box_convert, generalized_box_iou


class DETR(nn.Module):
    def __init__(self, classes=20, width=128, queries=25):
        super().__init__()
        backbone = torchvision.models.resnet18(norm_layer=torchvision.ops.FrozenBatchNorm2d)
        self.backbone = nn.Sequential(*list(backbone.children())[:-2])
        self.project = nn.Conv2d(512, width, 1)
        self.transformer = nn.Transformer(width, 4, 2, 2, 256, batch_first=True)
        self.queries = nn.Embedding(queries, width)
        self.places = nn.Parameter(torch.rand(1, 64, width))
        self.classes = nn.Linear(width, classes + 1)
        self.boxes = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, images):
        h = self.project(self.backbone(images)).flatten(2).transpose(1, 2)
        h = h + self.places[:, : h.shape[1]]
        out = self.transformer(h, self.queries.weight.expand(len(images), -1, -1))
        return self.classes(out), self.boxes(out).sigmoid()


@torch.no_grad()
def match(logits, boxes, targets):
    batch, queries = logits.shape[:2]
    probs, flat = logits.flatten(0, 1).softmax(-1), boxes.flatten(0, 1)
    labels = torch.cat([t["labels"] for t in targets])
    truth = torch.cat([t["boxes"] for t in targets])
    first, second = (box_convert(b, "cxcywh", "xyxy") for b in (flat, truth))
    assert (first[:, 2:] >= first[:, :2]).all()
    assert (second[:, 2:] >= second[:, :2]).all()
    cost = 5 * torch.cdist(flat, truth, p=1) - probs[:, labels]
    cost = (cost - 2 * generalized_box_iou(first, second)).view(batch, queries, -1).cpu()
    sizes = [len(t["boxes"]) for t in targets]
    pairs = [linear_sum_assignment(c[i]) for i, c in enumerate(cost.split(sizes, -1))]
    return [(torch.as_tensor(i), torch.as_tensor(j)) for i, j in pairs]


def losses(logits, boxes, targets, weight):
    pairs = match(logits, boxes, targets)
    batch = torch.cat([torch.full_like(i, n) for n, (i, _) in enumerate(pairs)])
    where = batch, torch.cat([i for i, _ in pairs])
    wanted = torch.full(logits.shape[:2], 20, dtype=torch.int64, device="cuda")
    wanted[where] = torch.cat([t["labels"][j] for t, (_, j) in zip(targets, pairs, strict=True)])
    truth = torch.cat([t["boxes"][j] for t, (_, j) in zip(targets, pairs, strict=True)])
    overlap = generalized_box_iou(
        box_convert(boxes[where], "cxcywh", "xyxy"), box_convert(truth, "cxcywh", "xyxy")
    )
    return {
        "ce": F.cross_entropy(logits.transpose(1, 2), wanted, weight),
        "bbox": F.l1_loss(boxes[where], truth, reduction="sum") / len(truth),
        "giou": (1 - overlap.diag()).sum() / len(truth),
    }


def main():
    torch.manual_seed(0)
    model = DETR().cuda().train()
    groups = [
        {"params": [p for n, p in model.named_parameters() if "backbone" not in n]},
        {"params": list(model.backbone.parameters()), "lr": 1e-5},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-4)
    weight = torch.ones(21, device="cuda")
    weight[-1] = 0.1
    for step in range(4):
        images = torch.rand(2, 3, 192, 256).cuda()
        targets = []
        for count in (3, 5):
            boxes = torch.rand(count, 4) * 0.3 + 0.2
            labels = torch.randint(0, 20, (count,))
            targets.append({"labels": labels.cuda(), "boxes": boxes.cuda()})
        parts = losses(*model(images), targets, weight)
        loss = parts["ce"] + 5 * parts["bbox"] + 2 * parts["giou"]
        if not torch.isfinite(loss):
            raise SystemExit(f"Loss is {loss.item()}, stopping training")
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        print(step, {name: round(part.item(), 4) for name, part in parts.items()})


main()
