"""timm's ResNet-50: fp16 autocast with a gradient scaler, channels_last, SGD with momentum."""

import argparse
import time

import timm
import torch
import torch.nn.functional as F


def main() -> None:
    """Train for a few steps; one line per step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    model = timm.create_model("resnet50", num_classes=1000)
    model = model.to("cuda", memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    shape = (args.batch_size, 3, args.image_size, args.image_size)
    for step in range(args.steps):
        started = time.perf_counter()
        images = torch.randn(shape, device="cuda").contiguous(memory_format=torch.channels_last)
        labels = torch.randint(0, 1000, (args.batch_size,), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        text = f"step {step}  loss {loss.item():.4f}"  # .item() waits for the GPU
        print(f"{text}  {(time.perf_counter() - started) * 1e3:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
