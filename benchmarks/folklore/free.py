"""Runs out of memory while the device shows free memory, for two reasons."""

import torch
from torch import Tensor

GIB = 2**30


def empty(gib: int) -> Tensor:
    return torch.empty(gib * GIB, dtype=torch.uint8, device="cuda")


def report(when: str) -> None:
    free, used = torch.cuda.mem_get_info()[0] / GIB, torch.cuda.memory_allocated() / GIB
    held = torch.cuda.memory_reserved() / GIB
    print(f"{when}: {free:.1f} GiB free, {used:.1f} allocated, {held:.1f} reserved")


def ask(gib: int) -> None:
    try:
        empty(gib)
    except torch.OutOfMemoryError:
        print(f"  {gib} GiB more: out of memory")
        return
    print(f"  {gib} GiB more: there they are")


kept = [empty(16)]
activations = [empty(1) for _ in range(4)]
report("in the step that fails")
ask(4)
del activations
torch.cuda.empty_cache()  # as when the process of the step has ended
report("when one looks")
kept.clear()
torch.cuda.empty_cache()

whole = empty(20)
del whole  # stays in the cache, and is cut for those that come next
pieces = [empty(2) for _ in range(10)]
del pieces[::2]
report("every second of ten blocks is gone")
ask(2)
ask(4)
