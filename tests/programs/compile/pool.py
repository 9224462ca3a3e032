"""torch.cuda.MemPool; its last line is JSON: the segments and bytes of each pool."""

import json

import torch

MIB = 2**20


def bytes_by_pool() -> dict[str, int]:
    """The bytes of the segments of each pool."""
    found: dict[str, int] = {}
    for segment in torch.cuda.memory_snapshot():
        name = ".".join(map(str, segment["segment_pool_id"]))
        found[name] = found.get(name, 0) + segment["total_size"]
    return found


def main() -> None:
    """What is made within a pool stays apart from the rest, until the pool is gone."""
    pool = torch.cuda.MemPool()
    common = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    with torch.cuda.use_mem_pool(pool):
        within = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    found = {"made": bytes_by_pool(), "pool": ".".join(map(str, pool.id))}
    within = within[:MIB].clone()
    del common
    other = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    found["reused"] = bytes_by_pool()
    del pool, other
    torch.cuda.empty_cache()
    found |= {"after": bytes_by_pool(), "bytes": within.numel()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
