"""CUDA graphs done wrong, and right beside it; its last line is JSON: how each way ended.

A way that CUDA refuses has the first line of its error, and whether the capture was lost with it.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable

import torch


def end(way: Callable[[], object]) -> str:
    """Runs a way; answers with "done" or the first line of what it raised."""
    try:
        way()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "done"


def capture(body: Callable[[], object], mode: str = "global") -> Callable[[], None]:
    """A capture of what `body` does, on a stream of its own."""

    def way() -> None:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
            X.add(1)
            body()

    return way


def inside(body: Callable[[], object], mode: str = "global") -> dict[str, str]:
    """How a call ends within a capture, and how the capture then does."""
    ends: list[str] = []
    whole = end(capture(lambda: ends.append(end(body)), mode))
    return {"call": ends[0], "capture": whole}


def in_thread(body: Callable[[], object]) -> Callable[[], None]:
    """The same in another thread, which has a device already."""

    def way() -> None:
        raised: list[RuntimeError] = []

        def run() -> None:
            try:
                body()
            except RuntimeError as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]

    return way


def fork(*, join: bool, work: bool = True) -> None:
    """A second stream takes part, with or without work, and is joined or not."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    if work:
        with torch.cuda.stream(side):
            X.mul(2)
    if join:
        torch.cuda.current_stream().wait_stream(side)


def join_before_last_work() -> None:
    """The second stream goes on after it was joined."""
    side, here = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(here)
    with torch.cuda.stream(side):
        X.mul(2)
        here.wait_stream(side)
        X.mul(3)


def join_by_another() -> None:
    """A third stream brings the second one home."""
    side, other, here = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.current_stream()
    for stream in (side, other):
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            X.mul(2)
    other.wait_stream(side)
    here.wait_stream(other)


def ask_captured_event() -> None:
    """The host asks whether an event of the capture has happened."""
    torch.cuda.current_stream().record_event().query()


def wait_for_captured_event() -> None:
    """The host waits for an event of the capture."""
    torch.cuda.current_stream().record_event().synchronize()


def end_elsewhere(mode: str) -> str:
    """A capture that one thread begins and another ends."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode=mode)
        X.add(1)

        def finish() -> None:
            with torch.cuda.stream(stream):
                graph.capture_end()

        return end(in_thread(finish))


def begin_twice() -> None:
    """A stream that captures is to capture again."""
    torch.cuda.CUDAGraph().capture_begin()


def main() -> None:
    """Every way in turn."""
    elsewhere = torch.cuda.Stream()
    outside = elsewhere.record_event()
    found = {
        "nothing": inside(lambda: None),
        "item": inside(lambda: X.sum().item()),
        "cpu": inside(X.cpu),
        "nonzero": inside(X.nonzero),
        "synchronize": inside(torch.cuda.synchronize),
        "synchronize_relaxed": inside(torch.cuda.synchronize, "relaxed"),
        "stream": inside(lambda: torch.cuda.current_stream().synchronize()),
        "other_stream_work": inside(lambda: work_on(elsewhere)),
        "captured_event_query": inside(ask_captured_event),
        "captured_event_wait": inside(wait_for_captured_event),
        "event_of_before": inside(lambda: torch.cuda.current_stream().wait_event(outside)),
        "event_query": inside(outside.query),
        "event_query_relaxed": inside(outside.query, "relaxed"),
        "event_query_in_thread": inside(in_thread(outside.query)),
        "event_query_in_thread_local": inside(in_thread(outside.query), "thread_local"),
        "allocation": inside(lambda: torch.empty(64 << 20, device="cuda")),
        "runtime_allocation": inside(allocate_by_runtime),
        "runtime_allocation_relaxed": inside(allocate_by_runtime, "relaxed"),
        "forked_and_joined": inside(lambda: fork(join=True)),
        "forked_only": inside(lambda: fork(join=False)),
        "forked_without_work": inside(lambda: fork(join=False, work=False)),
        "joined_too_early": inside(join_before_last_work),
        "joined_by_another": inside(join_by_another),
        "default_stream_waits": inside(
            lambda: torch.cuda.default_stream().wait_stream(torch.cuda.current_stream())
        ),
        "twice": inside(begin_twice),
        "ended_elsewhere_relaxed": end_elsewhere("relaxed"),
        "on_default_stream": end(torch.cuda.CUDAGraph().capture_begin),
        "after_all": inside(lambda: None),
        "ended_elsewhere": end_elsewhere("global"),  # the last: torch cannot end it any more
    }
    print(json.dumps(found))


def work_on(stream: torch.cuda.Stream) -> None:
    """Work for a stream that is in no capture is done at once."""
    with torch.cuda.stream(stream):
        X.mul_(1)


def allocate_by_runtime() -> None:
    """cudaMalloc as a library calls it, which knows nothing of captures."""
    status = ctypes.CDLL(None).cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1 << 20))
    if status:
        raise RuntimeError(f"status {status}")


X = torch.ones(1 << 10, device="cuda")

if __name__ == "__main__":
    main()
