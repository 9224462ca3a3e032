"""A block that a second stream of a capture used, and what the runtime says of the capture's nodes.

    captured_reuse.py [SETTINGS of the allocator]

Its last line is JSON: whether the next block of that size is the first one's, before the join, and
after the join and a kernel; how many such blocks are reserved; the nodes that the stream's next
work waits for at each moment, and those that two nodes waited for; how many nodes the graph has.
"""

import ctypes
import json
import os
import sys

if len(sys.argv) > 1:
    os.environ["PYTORCH_ALLOC_CONF"] = sys.argv[1]

import torch

RUNTIME = ctypes.CDLL(None)
# Since CUDA 13 the runtime's functions of these names tell of edges, too.
HAS_EDGES = int((torch.version.cuda or "0").partition(".")[0]) >= 13
NO_EDGES = [None] if HAS_EDGES else []
INFO = RUNTIME.cudaStreamGetCaptureInfo if HAS_EDGES else RUNTIME.cudaStreamGetCaptureInfo_v2
BYTES = 64 << 20
X = torch.ones(1 << 10, device="cuda")


class Waits:
    """Calls about the nodes of a capture; each node has the number in which it was seen."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = ctypes.c_void_p(stream.cuda_stream)
        self.seen: list[int] = []
        self.graph = ctypes.c_void_p()

    def number(self, node: int) -> int:
        """Of a node: 0 for the first that was seen."""
        if node not in self.seen:
            self.seen.append(node)
        return self.seen.index(node)

    def now(self) -> list[int]:
        """What the next work of the stream waits for."""
        status, count = ctypes.c_int(), ctypes.c_size_t()
        nodes = ctypes.POINTER(ctypes.c_void_p)()
        INFO(
            self.stream, ctypes.byref(status), None, ctypes.byref(self.graph),
            ctypes.byref(nodes), *NO_EDGES, ctypes.byref(count),
        )  # fmt: skip
        return [self.number(nodes[i] or 0) for i in range(count.value)]

    def before(self, number: int) -> list[int]:
        """What a node waits for."""
        count, nodes = ctypes.c_size_t(8), (ctypes.c_void_p * 8)()
        node = ctypes.c_void_p(self.seen[number])
        RUNTIME.cudaGraphNodeGetDependencies(node, nodes, *NO_EDGES, ctypes.byref(count))
        return [self.number(nodes[i] or 0) for i in range(count.value)]

    def set(self, number: int) -> None:
        """Lets the stream's next work wait for this node alone."""
        node, one, is_set = ctypes.c_void_p(self.seen[number]), ctypes.c_size_t(1), 1
        RUNTIME.cudaStreamUpdateCaptureDependencies(
            self.stream, ctypes.byref(node), *NO_EDGES, one, is_set
        )

    def num_nodes(self) -> int:
        """Of the graph."""
        count = ctypes.c_size_t()
        RUNTIME.cudaGraphGetNodes(self.graph, None, ctypes.byref(count))
        return count.value


def new_block() -> torch.Tensor:
    """A block of the size."""
    return torch.empty(BYTES, dtype=torch.int8, device="cuda")


def main() -> None:
    """Captures on two streams."""
    here, side = torch.cuda.Stream(), torch.cuda.Stream()
    waits, told = Waits(here), {}
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=here):
        told["at the start"] = waits.now()
        X.add_(1)
        told["after a kernel"] = waits.now()
        block = new_block()
        address = block.data_ptr()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            block.fill_(1)
        block.record_stream(side)
        del block
        blocks = [new_block()]
        here.wait_stream(side)
        told["after the join"] = waits.now()
        X.add_(1)
        blocks.append(new_block())
        told["after a kernel more"] = waits.now()
        told["that waited for"] = waits.before(2)
        told["the other stream's for"] = waits.before(1)
        num_nodes = waits.num_nodes()
        waits.set(0)
        told["when it was set"] = waits.now()
        waits.set(2)
    found = {
        "is_reused": [block.data_ptr() == address for block in blocks],
        "blocks": torch.cuda.memory_reserved() // BYTES,
        "waits": told,
        "num_nodes": num_nodes,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
