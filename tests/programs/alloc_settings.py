"""Allocations on which each allocator setting shows; prints torch's account as one JSON line.

Sizes are such that roundup_power2_divisions changes what is allocated, max_split_size_mb what is
reserved, garbage_collection_threshold what is given back, expandable_segments how many segments
there are, and the pinned_* settings how much host memory is held.
"""

import json

import torch

MIB = 2**20


def empty(num_bytes: int) -> torch.Tensor:
    """That many bytes on the GPU."""
    return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")


def main() -> None:
    """Odd sizes, a large block reused in parts, growth after holes, and pinned memory."""
    torch.cuda.set_per_process_memory_fraction(min(1.0, 2048 * MIB / torch.cuda.mem_get_info()[1]))
    odd = [empty(1200 * 1024 + 1), empty(5 * MIB + 3), empty(33 * MIB + 7)]
    large = empty(256 * MIB)
    del large
    parts = [empty(40 * MIB) for _ in range(4)]
    holes = [empty(24 * MIB) for _ in range(16)]
    del holes[::2]
    grown = [empty(48 * MIB + 24 * MIB * step) for step in range(6)]
    cached = [empty(200 * MIB) for _ in range(2)]
    del cached
    after = [empty(310 * MIB)]
    pinned = [
        torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in (MIB + 1, 3 * MIB + 5)
    ]
    stats = torch.cuda.memory_stats()
    kinds = ("requested", "allocated", "reserved", "inactive_split")
    found = {
        f"{kind}_{when}": stats[f"{kind}_bytes.all.{when}"]
        for kind in kinds
        for when in ("current", "peak")
    }
    found |= {
        f"segments_{when}": stats[f"segment.all.{when}"]
        for when in ("current", "peak", "allocated", "freed")
    }
    found["num_device_alloc"], found["num_device_free"] = (
        stats["num_device_alloc"],
        stats["num_device_free"],
    )
    host_stats = torch.cuda.host_memory_stats() if hasattr(torch.cuda, "host_memory_stats") else {}
    found["pinned"] = host_stats.get(
        "allocated_bytes.current", host_stats.get("allocated_bytes.all.current")
    )
    del odd, parts, holes, grown, after, pinned
    print(json.dumps(found))


if __name__ == "__main__":
    main()
