"""A program that uses torch's memory tools itself: records_itself.py SNAPSHOT_PATH.

Prints what they said as one JSON line, which must be the same with ullage watching and without:
ullage must neither add to nor take from what the program asked for.
"""

import json
import pickle
import sys
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

PEAKS = ("requested_bytes.all.peak", "allocated_bytes.all.peak", "reserved_bytes.all.peak")


def train(num_steps: int, width: int) -> None:
    """A few steps of a small network; all its memory is free again afterwards."""
    model = nn.Sequential(
        nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(num_steps):
        model(torch.randn(128, width, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def peaks() -> dict[str, int]:
    """The three peaks since the last reset."""
    stats = torch.cuda.memory_stats()
    return {name: stats[name] for name in PEAKS}


def num_events(snapshot: dict) -> int:
    """Trace entries of all devices."""
    return sum(len(trace) for trace in snapshot["device_traces"])


def main() -> None:
    """Before, during and after a recording of the program's own."""
    path = Path(sys.argv[1])
    found = {}
    train(2, 1024)
    found["peaks_before"] = peaks()
    found["events_before"] = num_events(torch.cuda.memory._snapshot())

    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    train(3, 512)
    found["peaks_after_reset"] = peaks()
    found["events"] = num_events(torch.cuda.memory._snapshot())
    torch.cuda.memory._dump_snapshot(str(path))
    with path.open("rb") as file:
        dumped = pickle.load(file)
    found["events_dumped"] = num_events(dumped)
    found["keys_dumped"] = sorted(dumped)
    frames = [
        frame
        for trace in dumped["device_traces"]
        for entry in trace
        for frame in entry.get("frames", [])
    ]
    found["frames_of_this_file"] = sum(
        Path(frame["filename"]).name == Path(__file__).name for frame in frames
    )
    torch.cuda.memory._record_memory_history(enabled=None)
    train(1, 256)
    found["events_when_off"] = num_events(torch.cuda.memory._snapshot())

    # Capped: the program's ring holds its last entries only.
    torch.cuda.memory._record_memory_history(max_entries=10)
    train(1, 256)
    found["events_capped"] = num_events(torch.cuda.memory._snapshot())
    torch.cuda.memory._record_memory_history(enabled=None)

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, profile_memory=True) as profiler:
        train(2, 256)
    events = profiler.events() or []
    found["profiler_memory_events"] = sum(event.name == "[memory]" for event in events)
    found["profiler_linear"] = sum(event.name == "aten::linear" for event in events)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
