"""torch.nn.DataParallel over all devices; its last line is JSON.

gathered: how much a result adds to each device. peaks: the most that each device held in a forward
without gradients. losses: of three steps of training. broadcast: small values on each device.
"""

import json

import torch
from torch import nn
from torch.cuda import comm

WIDTH, INNER, ROWS = 1024, 4096, 64


def peaks() -> list[int]:
    """The most that each device held since the last call."""
    found = [torch.cuda.max_memory_allocated(i) for i in range(torch.cuda.device_count())]
    for i in range(len(found)):
        torch.cuda.reset_peak_memory_stats(i)
    return found


def main() -> None:
    """A forward without gradients, and training."""
    devices = range(torch.cuda.device_count())
    layers = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)
    model = nn.DataParallel(nn.Sequential(layers[0], nn.ReLU(), layers[1]).cuda())
    x = torch.zeros(ROWS * len(devices), WIDTH, device="cuda")
    with torch.no_grad():
        model(x)  # brings what the libraries keep
        before = [torch.cuda.memory_allocated(i) for i in devices]
        peaks()
        y = model(x)
        highest = peaks()
    gathered = [torch.cuda.memory_allocated(i) - before[i] for i in devices]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    del y
    for _ in range(3):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    found = {"gathered": gathered, "before": before, "peaks": highest}
    found["broadcast"] = [t.tolist() for t in comm.broadcast(torch.arange(4).cuda(), [*devices])]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
