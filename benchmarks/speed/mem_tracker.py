"""GPT-2 124M, three steps, under torch's own MemTracker; prints one JSON line.

    mem_tracker.py EXAMPLE {tracked|plain}

EXAMPLE is examples/gpt2/train.py, whose model this takes. "plain" runs the same steps without the
tracker.
"""

import contextlib
import json
import runpy
import sys
import time

import torch
from torch.distributed._tools.mem_tracker import MemTracker


def main() -> None:
    """Seconds of the steps, the tracker's peak (None without it), and the allocator's."""
    example = runpy.run_path(sys.argv[1])
    tracker = MemTracker() if sys.argv[2] == "tracked" else None
    torch.manual_seed(0)
    model = example["GPT"]().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    if tracker:
        tracker.track_external(model, optimizer)
    started = time.perf_counter()
    with tracker or contextlib.nullcontext():
        for _ in range(3):
            ids, targets = example["make_batch"](8, 1024)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(ids, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if tracker:
                tracker.reset_mod_stats()  # it refuses a second forward otherwise
    seconds = time.perf_counter() - started
    tracked_bytes = None
    if tracker:
        device = torch.device("cuda", 0)
        tracked_bytes = tracker.get_tracker_snapshot("peak")[device]["Total"]
    found = {"seconds": seconds, "tracked_bytes": tracked_bytes}
    print(json.dumps(found | {"allocated_bytes": torch.cuda.max_memory_allocated()}))


if __name__ == "__main__":
    main()
