"""Tensors, an event and a buffer of one process in another; its last line is JSON: what the other
saw.

ipc.py [expandable]
"""

import json
import sys

import torch
import torch.multiprocessing as mp

GIB = 1 << 30


def receive(tensors: "mp.Queue", found: "mp.Queue", event: bytes) -> None:
    """Reads, writes and lets go of what has come."""
    small, large, view = tensors.get()
    torch.cuda.Event.from_ipc_handle(torch.device("cuda"), event).wait()
    first = [small.tolist(), list(large.shape), view.tolist(), torch.cuda.memory_allocated()]
    small.fill_(7)
    free, _total = torch.cuda.mem_get_info()
    del small, large, view
    torch.cuda.ipc_collect()
    found.put((*first, free))
    tensors.get()


def main() -> None:
    """Sends, waits, and looks at what the other has written."""
    if sys.argv[1:] == ["expandable"]:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    processes = mp.get_context("spawn")
    tensors, found = processes.Queue(), processes.Queue()
    event = torch.cuda.Event(enable_timing=False, interprocess=True)
    other = processes.Process(target=receive, args=(tensors, found, event.ipc_handle()))
    other.start()
    small = torch.tensor([1, 2, 3], device="cuda")
    large = torch.empty(8 * GIB, dtype=torch.int8, device="cuda")
    event.record()
    tensors.put((small, large, small[1:]))
    values, shape, view, allocated, free_there = found.get()
    after = small.tolist()
    free, total = torch.cuda.mem_get_info()
    tensors.put(None)
    other.join()
    print(
        json.dumps(
            {
                "values": values,
                "view": view,
                "shape": shape,
                "allocated": allocated,
                "after": after,
                "used": total - free,
                "used_there": total - free_there,
                "exit_code": other.exitcode,
            }
        )
    )


if __name__ == "__main__":
    main()
