"""Two graphs, of ten and of forty kernels; its last line is JSON: the device memory that each took
beside the allocator's, and what of it was not given back.
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
    one = capture(10)
    second = outside()
    other = capture(40)
    taken = [second - first, outside() - second]
    one.replay()
    other.replay()
    one.reset()
    other.reset()
    print(json.dumps({"taken": taken, "left": outside() - first}))


if __name__ == "__main__":
    main()
