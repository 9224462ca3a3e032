"""CUDA graphs by hand; its last line is JSON: what came of it.

pools: the pools of memory that there are after a capture; streams: how many have segments in the
private one. known, replayed: a small value before a replay, and after. refused: how a wait for the
device within a capture ends.
"""

import json

import torch


def pools() -> dict[str, int]:
    """The number of segments of each pool."""
    found: dict[str, int] = {}
    for segment in torch.cuda.memory_snapshot():
        pool = "common" if tuple(segment["segment_pool_id"]) == (0, 0) else "private"
        found[pool] = found.get(pool, 0) + 1
    return found


def capture_two_streams() -> tuple[torch.cuda.CUDAGraph, list[torch.Tensor]]:
    """A graph whose capture goes on in a second stream, and what it keeps."""
    layer, x = torch.nn.Linear(1024, 1024).cuda(), torch.zeros(256, 1024, device="cuda")
    ids = torch.arange(8, device="cuda")
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm), torch.no_grad():
        layer(x)
    torch.cuda.current_stream().wait_stream(warm)
    with torch.cuda.graph(graph), torch.no_grad():
        y, following = layer(x), ids + 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = torch.cat([y] * 8)
        torch.cuda.current_stream().wait_stream(side)
        w = y * 2
    return graph, [y, z, w, ids, following]


def refused() -> str:
    """What the program is told that waits for the device in a capture."""
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(4, device="cuda").sum().item()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


def callables() -> list[int]:
    """The peak of each of three steps with layers that are graphs, backward too."""
    layers = [torch.nn.Linear(512, 512).cuda() for _ in range(2)]
    x = torch.zeros(64, 512, device="cuda", requires_grad=True)
    first, second = torch.cuda.make_graphed_callables(tuple(layers), ((x,), (x,)))
    peaks = []
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        second(first(x)).square().mean().backward()
        peaks.append(torch.cuda.max_memory_allocated())
    return peaks


def main() -> None:
    """Captures, replays, and says what it saw."""
    graph, kept = capture_two_streams()
    found = {"pools": pools()}
    private = [s for s in torch.cuda.memory_snapshot() if s["segment_pool_id"] != (0, 0)]
    found["streams"] = len({segment["stream"] for segment in private})
    following = kept[-1]
    following.fill_(7)
    found["known"] = following.tolist()
    graph.replay()
    found |= {"replayed": following.tolist(), "untouched": kept[-2].tolist()}
    del graph, kept, following
    torch.cuda.empty_cache()
    found["pools_after"] = pools()
    found |= {"refused": refused(), "callables": callables()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
