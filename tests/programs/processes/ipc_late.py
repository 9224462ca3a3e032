"""Opens the handle of a process that has ended; its last line is JSON: the error."""

import json
from multiprocessing import get_context
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor


def send(handles: Any) -> None:
    """Hands over what a tensor is rebuilt from, and ends."""
    handles.put(reduce_tensor(torch.ones(1 << 20, device="cuda"))[1])


def main() -> None:
    """Rebuilds too late."""
    processes = get_context("spawn")
    handles = processes.SimpleQueue()
    other = processes.Process(target=send, args=(handles,))
    other.start()
    _type, _size, _stride, _offset, storage, dtype, device, handle, size, offset, *rest = (
        handles.get()
    )
    other.join()
    torch.cuda.init()
    try:
        storage._new_shared_cuda(device, handle, size, offset, *rest[1:])
        error = ""
    except RuntimeError as raised:
        error = str(raised)
    print(json.dumps({"error": error, "dtype": str(dtype)}))


if __name__ == "__main__":
    main()
