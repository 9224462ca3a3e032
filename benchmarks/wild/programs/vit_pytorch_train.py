"""vit-pytorch's notebook: an efficient ViT on folders of images, accuracies by torchmetrics."""

import torch
import torchmetrics
from torch import nn
from vit_pytorch import ViT

torch.manual_seed(42)
model = ViT(
    image_size=128, patch_size=16, num_classes=6, dim=256, depth=4, heads=4, mlp_dim=512,
    dropout=0.1, emb_dropout=0.1,
).to("cuda")  # fmt: skip
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-5)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
metrics = torchmetrics.MetricCollection(
    {
        "top1": torchmetrics.Accuracy("multiclass", num_classes=6),
        "top5": torchmetrics.Accuracy("multiclass", num_classes=6, top_k=5),
        "f1": torchmetrics.F1Score("multiclass", num_classes=6, average="macro"),
        "auroc": torchmetrics.AUROC("multiclass", num_classes=6),
        "confusion": torchmetrics.ConfusionMatrix("multiclass", num_classes=6),
    }
).to("cuda")
for epoch in range(2):
    epoch_loss = epoch_accuracy = 0
    for _ in range(3):
        data, label = torch.rand(8, 3, 128, 128).to("cuda"), torch.randint(0, 6, (8,)).to("cuda")
        output = model(data)
        loss = criterion(output, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch_accuracy += (output.argmax(dim=1) == label).float().mean() / 3
        epoch_loss += loss / 3
    model.eval()
    with torch.no_grad():
        for _ in range(2):
            out = model(torch.rand(8, 3, 128, 128).to("cuda")).softmax(-1)
            metrics.update(out, torch.randint(0, 6, (8,)).to("cuda"))
    values = {name: value.tolist() for name, value in metrics.compute().items()}
    metrics.reset()
    scheduler.step()
    print(f"epoch {epoch + 1} loss {epoch_loss:.4f} acc {epoch_accuracy:.4f}", values)
