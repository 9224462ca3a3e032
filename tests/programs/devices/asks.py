"""What a program finds out about its devices; its last line is JSON.

copied: how much the copy of a transposed matrix of 4 MiB adds to the most that both devices held.
between: the error of asking for the time between events of two devices.
"""

import json

import torch


def copied() -> list[int]:
    """From device 1 to device 0, in another order than it lies there."""
    matrix = torch.zeros(1024, 1024, device="cuda:1").t()
    here = torch.zeros(1024, 1024, device="cuda:0")
    before = [torch.cuda.memory_allocated(i) for i in range(2)]
    for i in range(2):
        torch.cuda.reset_peak_memory_stats(i)
    here.copy_(matrix)
    return [torch.cuda.max_memory_allocated(i) - before[i] for i in range(2)]


def between() -> str:
    """One event on each device."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    for index, event in enumerate(events):
        with torch.cuda.device(index):
            event.record()
        event.synchronize()
    try:
        return str(events[0].elapsed_time(events[1]))
    except RuntimeError as error:
        return str(error).splitlines()[0]


def main() -> None:
    """Asks."""
    found: dict[str, object] = {"count": torch.cuda.device_count()}
    if torch.cuda.device_count() > 1:
        ids = torch.arange(8, device="cuda:1")
        free = torch.cuda.mem_get_info(1)[0]
        kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda:1")
        found |= {
            "peers": [torch.cuda.can_device_access_peer(a, b) for a, b in ((0, 1), (1, 0))],
            "moved": (ids.to("cuda:0") + 1).tolist(),
            "current": torch.cuda.current_device(),
            "taken": free - torch.cuda.mem_get_info(1)[0],
            "stream": torch.cuda.Stream(device=1).device.index,
            "uuids": len({str(torch.cuda.get_device_properties(i).uuid) for i in range(2)}),
            "copied": copied(),
            "between": between(),
        }
        del kept
    print(json.dumps(found))


if __name__ == "__main__":
    main()
