"""Steps of one kind each, named by the first argument; its last line is JSON: what the program's
own clocks say of the last step (seconds), if it asks them.
"""

import json
import statistics
import sys
import threading
import time
from time import perf_counter

import torch

SIZE = 4096
CASE = sys.argv[1]


def weights() -> torch.Tensor:
    return torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)


A, B = weights(), weights()
MODEL = torch.nn.Linear(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
COUNT = {"fused_of_few": 16, "fused_of_many": 160}.get(CASE, 0)
PARAMETERS = [torch.zeros((160 << 20) // COUNT, device="cuda") for _ in range(COUNT)]
GRADIENTS = [torch.zeros_like(each) for each in PARAMETERS]
OPTIMIZER = (
    torch.optim.AdamW([*MODEL.parameters(), *PARAMETERS], fused=True)
    if COUNT
    else torch.optim.SGD(MODEL.parameters(), lr=0.1)
)
SIDE = torch.cuda.Stream()


def products(num: int = 8) -> None:
    for _ in range(num):
        A @ B


def on_two_streams() -> None:
    with torch.cuda.stream(SIDE):
        products()
    products()


def one_after_another() -> None:
    with torch.cuda.stream(SIDE):
        products()
    torch.cuda.current_stream().wait_stream(SIDE)
    products()


def many_small() -> None:
    tiny = A[0, :8]
    for _ in range(200):
        tiny + 1


def give_gradients() -> None:
    """To what the fused step is for: 640 MiB of parameters, in whole chunks of 65,536 numbers."""
    for each, gradient in zip(PARAMETERS, GRADIENTS, strict=True):
        each.grad = gradient


CASES = {
    "fused_of_few": give_gradients,
    "fused_of_many": give_gradients,
    "products": products,
    "two_streams": on_two_streams,
    "one_after_another": one_after_another,
    "many_small": many_small,
}


def train(step: torch.Tensor) -> None:
    MODEL(step).sum().backward()
    OPTIMIZER.step()
    OPTIMIZER.zero_grad()


def graph_of_products() -> torch.cuda.CUDAGraph:
    products(1)  # the workspace of cuBLAS
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        products()
    return graph


def measure() -> dict[str, float]:
    """What clocks say of a step, of a sleep, and of waiting for time to pass.

    Medians: the clock goes on as the real one where a busy machine holds this process up.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    steps, sleeps = [], []
    for _ in range(12):
        torch.cuda.synchronize()
        started, started_ns, walled = perf_counter(), time.perf_counter_ns(), time.time()
        begin.record()
        train(A)
        end.record()
        torch.cuda.synchronize()
        steps.append(
            {
                "events": begin.elapsed_time(end) / 1e3,
                "perf_counter": perf_counter() - started,
                "perf_counter_ns": (time.perf_counter_ns() - started_ns) / 1e9,
                "time": time.time() - walled,
            }
        )
    told = {clock: statistics.median(step[clock] for step in steps[3:]) for clock in steps[0]}
    for _ in range(5):
        started = perf_counter()
        time.sleep(0.2)
        sleeps.append(perf_counter() - started)
    told["sleep"] = statistics.median(sleeps)
    started = perf_counter()
    thread = threading.Thread(target=time.sleep, args=(0.05,))
    thread.start()
    thread.join()
    told["thread"] = perf_counter() - started
    deadline = time.time() + 0.3
    while time.time() < deadline:
        pass
    return told


def main() -> None:
    """Runs four steps."""
    if CASE == "measure":
        print(json.dumps(measure()))
        return
    graph = graph_of_products() if CASE == "graph" else None
    for _ in range(4):
        if graph is not None:
            graph.replay()
        elif CASE in CASES:
            CASES[CASE]()
        train(A)
    print(json.dumps({}))


if __name__ == "__main__":
    main()
