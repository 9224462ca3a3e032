"""Asks the allocator in every way that a replay must follow: sizes of both pools, streams, blocks
freed while another stream uses them, a cache that is emptied, a private pool. With "retries" it
also fills the GPU, so that the allocator gives its cache back, and then fails.
"""

import random
import sys

import torch

MIB = 2**20
words = sys.argv[1:]
chosen = random.Random(3)
held = []
streams = [torch.cuda.Stream() for _ in range(2)]


def take(num_bytes):
    return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")


def churn(count):
    for _ in range(count):
        size = chosen.choice((700, 30_000, 900_000, 3 * MIB, 9 * MIB, 14 * MIB, 33 * MIB))
        held.append(take(chosen.randint(size // 2, size)))
        if len(held) > 40:
            held.pop(chosen.randrange(len(held)))


churn(300)
for stream in streams:
    with torch.cuda.stream(stream):
        churn(100)
shared = take(50 * MIB)
shared.record_stream(streams[0])
del shared
churn(50)
del held[::2]
torch.cuda.empty_cache()
churn(200)
if "pool" in words:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = [take(size * MIB) for size in (1, 5, 30)]
    churn(100)
    with torch.cuda.use_mem_pool(pool):
        kept += [take(12 * MIB)]
    del kept[0]
    churn(100)
if "retries" in words:
    held.clear()
    free, _total = torch.cuda.mem_get_info()
    big = [take(free // 3) for _ in range(2)]
    try:
        big.append(take(free // 2))
    except torch.OutOfMemoryError:
        big.pop()
        held.append(take(free // 2))
    churn(50)
