"""Measures the costs of a recording in a process with a GPU; prints one JSON object.

    python overhead_program.py SOURCE_OF_ULLAGE DIRECTORY costs|off|events|full
    ... DIRECTORY training|forwards off|events|full         # a day in miniature

Times are of the process's CPU, so that other programs of the machine count little. In each round
every way of recording is measured once, in an order of its own, and the unrecorded process twice.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, sys.argv[1])
import ullage
from ullage.players.inside.allocator.event_hook import EventHook
from ullage.players.inside.attached import current
from ullage.players.inside.pressure.gauge import PressureGauge

DIRECTORY = Path(sys.argv[2])
ALLOCATIONS, ROUNDS, DEPTH = 20_000, 15, 20
NUM_OOM_EVENTS, NUM_MANY_EVENTS, STEPS_OF_A_DAY = 100_000, 10_000_000, 864_000
HOURS, STEPS_OF_AN_HOUR, FORWARDS_OF_AN_HOUR, RING_OF_A_DAY = 24, 60, 2500, "4MiB"
HISTORY = torch.cuda.memory._record_memory_history


class Allocating(nn.Module):
    """A module whose forward allocates and frees again and again."""

    def forward(self, count: int) -> None:
        """The measured loop, below a stack of an ordinary depth."""
        below(DEPTH, count)


def below(depth: int, count: int) -> None:
    """Calls itself, then allocates."""
    if depth:
        below(depth - 1, count)
        return
    for _ in range(count):
        torch.empty(256, device="cuda")


MODULE = Allocating()


def time_us(count: int = ALLOCATIONS) -> float:
    """CPU time for an allocation with its free."""
    began_s = time.process_time()
    MODULE(count)
    return (time.process_time() - began_s) / count * 1e6


def with_history(context: str | None) -> float:
    """Under torch's own recording."""
    HISTORY("all", context=context, stacks="python", max_entries=100_000)
    try:
        return time_us()
    finally:
        HISTORY(None)


def with_recording(mode: str) -> float:
    """Under ours."""
    recording = ullage.record.attach(None, mode=mode, publish=False)
    try:
        return time_us()
    finally:
        recording.detach()


def time_each() -> list[dict[str, float]]:
    """The times of each round."""
    ways: dict[str, Callable[[], float]] = {
        "off": time_us,
        "off_again": time_us,
        "torch_without_stacks": lambda: with_history(None),
        "torch_with_stacks": lambda: with_history("alloc"),
        "counters": lambda: with_recording("counters"),
        "events": lambda: with_recording("events"),
        "full": lambda: with_recording("full"),
    }
    order, shuffle = list(ways), random.Random(0).shuffle
    rounds = []
    for _ in range(ROUNDS):
        shuffle(order)
        rounds.append({name: ways[name]() for name in order})
    return rounds


def resident_bytes() -> int:
    """Host memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def time_writing() -> dict[str, Any]:
    """How long it takes to write what is known when memory runs out."""
    path = DIRECTORY / "oom.pickle"
    recording = ullage.record.attach(path, publish=False, ring="512MiB", every=None)
    MODULE(NUM_OOM_EVENTS // 2)
    recorder = current()
    assert recorder is not None
    began = time.process_time(), time.monotonic()
    recorder.note_oom(0, 1 << 40, 1 << 36, 0)
    cpu_s, wall_s = time.process_time() - began[0], time.monotonic() - began[1]
    size = path.stat().st_size
    recording.detach()
    load = os.getloadavg()[0]
    return {"cpu_s": cpu_s, "wall_s": wall_s, "file_bytes": size, "load": load}


def fill(mode: str) -> dict[str, Any]:
    """Host memory and the file after many events, and the steps of a day at ten a second; "off":
    without recording, as the phantom and the allocator take memory too.
    """
    path = DIRECTORY / f"{mode}.pickle"
    MODULE(1000)
    before, step_us = resident_bytes(), 0.0
    is_recorded = mode != "off"
    recording = None
    if is_recorded:
        recording = ullage.record.attach(path, mode=mode, publish=False, every=None)
    recorder = current()
    gauge = None if recorder is None else recorder.find(PressureGauge)
    if gauge is not None:
        began_s = time.process_time()
        for _ in range(STEPS_OF_A_DAY):
            gauge.step_peaks.add(1 << 30, 1 << 31, 0.1)
        step_us = (time.process_time() - began_s) / STEPS_OF_A_DAY * 1e6
    MODULE(NUM_MANY_EVENTS // 2)
    grown = resident_bytes() - before
    if recording is not None:
        recording.detach()
    size = path.stat().st_size if is_recorded else 0
    return {"grown_bytes": grown, "step_us": step_us, "file_bytes": size}


def make_training() -> Callable[[], None]:
    """An hour of training steps: forward, backward, a new gradient of each parameter, AdamW."""
    layers = [nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.GELU()) for _ in range(12)]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def run() -> None:
        for _ in range(STEPS_OF_AN_HOUR):
            model(torch.ones(16, 64, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def make_forwards() -> Callable[[], None]:
    """An hour of a server: forwards without gradients, and no optimizer."""
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).cuda().eval()

    def run() -> None:
        with torch.no_grad():
            for number in range(FORWARDS_OF_AN_HOUR):
                model(torch.ones(1 + number % 7, 64, device="cuda"))

    return run


def live_a_day(program: str, mode: str) -> dict[str, Any]:
    """Host memory and the file after each hour of real steps, with a small ring."""
    path = DIRECTORY / f"{program}-{mode}.pickle"
    recording = None
    if mode != "off":
        recording = ullage.record.attach(
            path, mode=mode, publish=False, every=None, ring=RING_OF_A_DAY
        )
    recorder = current()
    run = {"training": make_training, "forwards": make_forwards}[program]()
    hours = []
    for _ in range(HOURS):
        run()
        if recorder is not None:
            recorder._write(None)
        size = path.stat().st_size if path.exists() else 0
        hook = None if recorder is None else recorder.find(EventHook)
        lost = 0 if hook is None else hook.num_lost
        hours.append({"resident_bytes": resident_bytes(), "file_bytes": size, "num_lost": lost})
    if recording is not None:
        recording.detach()
    return {"hours": hours}


def main() -> None:
    """Measures one part."""
    torch.cuda.init()
    time_us()
    part = sys.argv[3]
    if part in ("training", "forwards"):
        document: dict[str, Any] = live_a_day(part, sys.argv[4])
    elif part == "costs":
        document = {"rounds": time_each(), "writing": time_writing()}
    else:
        document = fill(part)
    print(json.dumps(document))


main()
