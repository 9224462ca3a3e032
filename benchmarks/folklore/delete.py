"""Deletes a tensor, and shows what that gives back to whom."""

import torch

GIB = 2**30


def report(when: str) -> None:
    free, total = torch.cuda.mem_get_info()
    used, held = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    figures = [f"{figure / GIB:9.2f}" for figure in (used, held, total - free)]
    print(f"{when:26}", *figures)


torch.cuda.init()
print(f"{'GiB':26} allocated  reserved    device")
report("nothing")
x = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
report("x = torch.empty(2 GiB)")
first = x[:1]
del x
report("first = x[:1]; del x")
del first
report("del first")
x = torch.empty(GIB, dtype=torch.uint8, device="cuda")
report("x = torch.empty(1 GiB)")
torch.cuda.empty_cache()
report("empty_cache()")
del x
torch.cuda.empty_cache()
report("del x; empty_cache()")
