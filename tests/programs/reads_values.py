"""Training that branches on values that only a kernel can have written; its last line is "done"."""

import torch
from torch import nn


def count_large(values: torch.Tensor) -> int:
    """A loop over nonzero(), whose length is a value on the device."""
    num_large = 0
    for _ in values.gt(0.5).nonzero():
        num_large += 1
    return num_large


def read_everything(x: torch.Tensor, loss: torch.Tensor) -> None:
    """Each way in which programs commonly ask a device tensor for its value."""
    print("isfinite", bool(torch.isfinite(loss).all()))
    mask = torch.ones(8, 8, dtype=torch.bool, device="cuda").tril()
    if mask.all():
        print("mask: all")
    else:
        print("mask: some")
    print("equal", torch.equal(x, x.clone()))
    print("item", loss.item())
    print("tolist", len(x[0, :4].tolist()))
    print("cpu", tuple(x.sum(dim=0).cpu().shape))
    print("nonzero", count_large(x[:4, :4]))
    print("unique", len(torch.unique(x.argmax(dim=1))))
    print("indexed", tuple(x[x.amax(dim=1) > 0].shape[1:]))


def main() -> None:
    """Three steps with a gradient scaler; one that was skipped for an overflow counts as a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(3):
        x = torch.randn(64, 256, device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not torch.isfinite(norm):
            print("not finite")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        read_everything(x, loss.detach())
    print("done")


if __name__ == "__main__":
    main()
