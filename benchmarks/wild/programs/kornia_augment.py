"""kornia: augmentation on the GPU, a homography by descent, and points of interest."""

import kornia
import torch
from kornia import augmentation as aug
from torch import nn

torch.manual_seed(0)
augment = aug.AugmentationSequential(
    aug.RandomAffine(15.0, p=1.0), aug.ColorJitter(0.2, 0.2, 0.2, 0.1, p=0.8),
    aug.RandomHorizontalFlip(p=0.5), aug.RandomErasing(p=0.5), data_keys=["input", "mask"],
)  # fmt: skip
net = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 1, 1)
).cuda()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for step in range(3):
    images, masks = torch.rand(8, 3, 64, 64).cuda(), (torch.rand(8, 1, 64, 64) > 0.5).float()
    images, masks = augment(images, masks.cuda())
    loss = kornia.losses.BinaryFocalLossWithLogits(alpha=0.25, reduction="mean")(net(images), masks)
    loss = loss + kornia.losses.ssim_loss(net(images).sigmoid(), masks, 5)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
image = torch.rand(1, 1, 64, 64).cuda()
homography = nn.Parameter(torch.eye(3, device="cuda")[None])
descent = torch.optim.Adam([homography], 1e-3)
for _ in range(2):
    warped = kornia.geometry.warp_perspective(image, homography, (64, 64))
    distance = (warped - image).abs().mean()
    descent.zero_grad()
    distance.backward()
    descent.step()
corners = kornia.feature.harris_response(kornia.filters.gaussian_blur2d(image, (5, 5), (1.5, 1.5)))
print(f"distance {distance.item():.4f}, {corners.shape}, {kornia.metrics.psnr(image, warped, 1.0)}")
