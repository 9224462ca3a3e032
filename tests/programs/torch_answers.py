"""What PyTorch's own tests ask of a driver, case by case: `torch_answers.py CASE`."""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import torch


def pinned_pairs() -> Any:
    """Each way of pinning memory is undone by its own call alone."""
    runtime = torch.cuda.cudart()
    allocated = torch.ones(1 << 20, pin_memory=True)
    errors = [int(runtime.cudaHostUnregister(allocated.data_ptr()))]
    allocated.fill_(2)  # it is there
    plain = torch.ones(1 << 20)
    place = plain.data_ptr()
    errors += [int(runtime.cudaHostRegister(place, plain.nbytes, 0)) for _ in range(2)]
    errors.append(int(ctypes.CDLL(None).cudaFreeHost(ctypes.c_void_p(place))))
    return errors + [int(runtime.cudaHostUnregister(place)) for _ in range(2)]


def contexts() -> Any:
    """Which of two devices have a context, and what NVML says is used of each (MiB)."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()

    def look() -> list[Any]:
        found = []
        for index in range(2):
            handle, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
            nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
            nvml.nvmlDeviceGetMemoryInfo(handle, memory)
            found.append([torch._C._cuda_hasPrimaryContext(index), memory[2] > 100 << 20])
        return found

    seen = [look()]
    torch.cuda.init()
    assert torch.cuda.device_count() == 2
    seen.append(look())
    torch.cuda.set_device(1)
    torch.ones(3).pin_memory()  # by the device that has one
    seen.append(look())
    torch.cuda.synchronize(0)
    seen.append(look())
    return seen


def graph_events() -> Any:
    """Milliseconds between two events that a graph records, in each of its launches."""
    x = torch.ones(1000, 1000, device="cuda")
    begin, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
    x @ x
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        begin.record()
        y = x @ x
        end.record()
    times = []
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    del begin  # the graph still has it
    torch.cuda.Event(enable_timing=True)
    graph.replay()
    return [times[0] > 0, times[0] == times[1], list(y.shape)]


def shared_files() -> Any:
    """Tensors shared by files, for which PyTorch starts a daemon."""
    torch.multiprocessing.set_sharing_strategy("file_system")
    return [torch.ones(10).share_memory_().sum().item()]


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
