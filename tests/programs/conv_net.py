"""Three training steps, and an evaluation, of a convolutional network with batch norm."""

import torch
from torch import nn


def main() -> None:
    """One line per step."""
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
        nn.MaxPool2d(2), nn.Dropout(0.1),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    num_right = 0
    for step in range(3):
        images = torch.randn(16, 3, 64, 64, device="cuda")
        labels = torch.randint(0, 10, (16,), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}", flush=True)
    net.eval()
    with torch.no_grad():
        for _ in range(2):
            scores = net(torch.randn(16, 3, 64, 64, device="cuda"))
            num_right += (scores.argmax(dim=1) == labels).sum().item()
    print(num_right)


if __name__ == "__main__":
    main()
