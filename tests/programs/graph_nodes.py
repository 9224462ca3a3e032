"""Two graphs, of 40 and of 1,000 kernels; its last line is JSON: the device memory that each took
beside the allocator's, what of it was left when they were gone, and when two others had come.
"""

import json

import torch

X = torch.ones(1 << 10, device="cuda")


def outside() -> int:
    """What is used of the device and not by PyTorch's allocator."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def capture(num_nodes: int) -> torch.cuda.CUDAGraph:
    """Adds one, `num_nodes` times."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(num_nodes):
            X.add_(1)
    return graph


def main() -> None:
    """Captures, and lets go."""
    first = outside()
    one = capture(40)
    second = outside()
    other = capture(1000)
    taken = [second - first, outside() - second]
    one.replay()
    other.replay()
    one.reset()
    other.reset()
    left = outside() - first
    kept = [capture(1000), capture(40)]
    print(json.dumps({"taken": taken, "left": left, "again": outside() - first}))
    del kept


if __name__ == "__main__":
    main()
