"""Records its memory history in windows, each in another way; prints what each showed, as JSON.

For each window: the actions of its entries in order, how many have frames of this file, and how
many blocks and segments of the snapshot have.
"""

import json
from collections import Counter
from inspect import signature
from pathlib import Path

import torch

KIB = 2**10
record = torch.cuda.memory._record_memory_history
CAN_CLEAR = "clear_history" in signature(record).parameters  # newer than torch 2.6


def work(num_blocks: int) -> list[torch.Tensor]:
    """So many blocks come and half of them go; what is left."""
    blocks = [
        torch.empty((1 + index % 3) * 100 * KIB, dtype=torch.uint8, device="cuda")
        for index in range(num_blocks)
    ]
    del blocks[::2]
    return blocks


def is_here(holder: dict) -> bool:
    """Whether a stack passes through this file."""
    frames = holder.get("frames", [])
    return any(Path(frame["filename"]).name == Path(__file__).name for frame in frames)


def look() -> dict:
    """What a snapshot shows now."""
    snapshot = torch.cuda.memory._snapshot()
    entries = [entry for trace in snapshot["device_traces"] for entry in trace]
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    return {
        "is_on": torch._C._cuda_isHistoryEnabled(),
        "actions": [entry["action"] for entry in entries],
        "sizes": [entry.get("size") for entry in entries],
        "with_frames": Counter(entry["action"] for entry in entries if is_here(entry)),
        "blocks": sorted(Counter(block["state"] for block in blocks).items()),
        "blocks_with_frames": sum(map(is_here, blocks)),
        "segments": len(snapshot["segments"]),
        "segments_with_frames": sum(map(is_here, snapshot["segments"])),
    }


def main() -> None:
    """Windows over the same kind of work."""
    found, held = {}, [work(8)]
    found["before"] = look()
    record()
    held.append(work(10))
    found["first"] = look()
    record(enabled=None)
    held.append(work(6))
    found["stopped"] = look()
    record(max_entries=100)
    held.append(work(12))
    found["again"] = look()
    held += [work(20) for _ in range(8)]
    found["capped"] = look()
    if CAN_CLEAR:
        record(clear_history=True)
    else:
        record(enabled=None)
        record()
    held.append(work(4))
    found["cleared"] = look()
    record(enabled=None)
    record(context=None)
    held.append(work(5))
    found["without_context"] = look()
    record(enabled=None)
    record("state", stacks="python")
    held.append(work(5))
    found["state_alone"] = look()
    record(enabled=None)
    record(context="alloc", stacks="python")
    held.append(work(7))
    found["stacks_of_allocations"] = look()
    record(enabled=None)
    record(True, trace_alloc_max_entries=6, trace_alloc_record_context=True)
    held.append(work(9))
    found["flags_of_old"] = look()
    record(False)
    record(True)
    held.append(work(3))
    found["flags_by_default"] = look()
    record(False)
    for context in ("all", None, "alloc", "state", "alloc"):
        record(context=context, stacks="python")
        held.append(work(4))
        found[f"{context}_after_all"] = look()
    record(enabled=None)
    del held
    found["after"] = look()
    torch.cuda.empty_cache()
    found["emptied"] = look()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
