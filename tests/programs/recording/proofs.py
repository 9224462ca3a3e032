"""Proofs of what a recording leaves alone, and of what it does where something is amiss.

    proofs.py SOURCE_OF_ULLAGE DIRECTORY scaler|slots|unhooked|random|failing|out_of_memory MODE

Prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, sys.argv[1])  # where ullage is
import ullage
from ullage.ground.native.libraries import EVENT_HOOK
from ullage.players.inside.allocator.event_hook import EventHook
from ullage.players.inside.attached import current
from ullage.players.inside.pressure.gauge import PressureGauge
from ullage.players.inside.steps.scaler_skips import ScalerSkips

PATH, WHAT, MODE = Path(sys.argv[2]) / "run.pickle", sys.argv[3], sys.argv[4]
WORD = 8


def train(steps: int = 4) -> list[float]:
    """A few steps with dropout, so that random numbers are drawn; the state of the generators."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*torch.cuda.get_rng_state().tolist(), *torch.get_rng_state().tolist()]


def attach(**options: Any) -> Any:
    """A recording in the mode that was named."""
    return ullage.record.attach(PATH, mode=MODE, publish=False, **options)


def scaler() -> dict[str, Any]:
    """A gradient scaler on the CPU, where numbers are what they are, skips steps by itself."""
    torch.cuda.init()
    recording = attach()
    recorder = current()
    skips = None if recorder is None else recorder.find(ScalerSkips)
    assert skips is not None
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    counts, scales = [], []
    for step in range(6):
        loss = model(torch.ones(2, 4)).sum() * (float("inf") if step in (1, 4) else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        counts.append(skips.count)
        scales.append(scaler.get_scale())
    recording.detach()
    return {"counts": counts, "scales": scales}


def words_of(libraries: tuple[str, ...]) -> dict[int, bytes]:
    """The data of libraries as it lies in memory now, by the address where each part begins: their
    tables of calls are in it.
    """
    parts = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split()
        if fields[-1].rpartition("/")[2] in libraries and "x" not in fields[1]:
            begin, end = (int(number, 16) for number in fields[0].split("-"))
            if fields[1].startswith("r") and int(fields[2], 16):
                parts[begin] = ctypes.string_at(begin, end - begin)
    return parts


def code_of(library: Path) -> list[range]:
    """Where the code of a library lies."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split()[0].split("-") for line in lines
             if line.endswith(str(library)) and "x" in line.split()[1]]  # fmt: skip
    return [range(int(begin, 16), int(end, 16)) for begin, end in spans]


def differing(before: dict[int, bytes], after: dict[int, bytes]) -> dict[int, tuple[int, int]]:
    """The words that differ, by their address."""
    words = {}
    for begin in before.keys() & after.keys():
        mine, theirs = before[begin], after[begin]
        if mine != theirs:
            pairs = zip(memoryview(mine).cast("Q"), memoryview(theirs).cast("Q"), strict=True)
            words |= {
                begin + WORD * number: pair
                for number, pair in enumerate(pairs)
                if pair[0] != pair[1]
            }
    return words


def slots() -> dict[str, Any]:
    """The tables by which PyTorch's libraries call, before, while and after they are hooked."""
    train()  # so that the loader has filled them
    libraries = ("libc10_cuda.so", "libtorch_cuda.so")
    before = words_of(libraries)
    recording = attach()
    during = words_of(libraries)
    code = code_of(EVENT_HOOK)
    recording.detach()
    after = words_of(libraries)
    hooked = {
        place: pair[0]
        for place, pair in differing(before, during).items()
        if any(pair[1] in span for span in code)
    }
    left = [place for place in differing(before, after) if place in hooked]
    ours = [place for place, pair in differing(before, after).items()
            if any(pair[1] in span for span in code)]  # fmt: skip
    return {"num_hooked": len(hooked), "left": left, "ours": ours}


def unhooked() -> dict[str, Any]:
    """A torch whose libc10_cuda has no slot for the hook."""
    begin = EventHook.hook

    def fail(hook: EventHook) -> bool:
        if begin(hook):
            hook.remove()
        return False

    EventHook.hook = fail  # type: ignore[method-assign]
    recording = attach()
    state = train()
    torch.cuda.synchronize()
    recorder = current()
    assert recorder is not None
    document = {"has_hook": recorder.has_events, "peak": torch.cuda.max_memory_allocated()}
    recording.detach()
    return document | {"is_same": state == train(), "file": str(PATH)}


def random() -> dict[str, Any]:
    """The states of the generators, recorded and not."""
    plain = train()
    recording = attach(every=1e-9)  # written after each step
    recorded = train()
    recording.detach()
    return {"is_same": plain == recorded, "length": len(plain), "moves": plain != train(5)}


def failing() -> dict[str, Any]:
    """A defect in what is done at the end of each step."""
    recording = attach()
    recorder = current()
    assert recorder is not None
    calls = []

    def fail() -> None:
        calls.append(1)
        raise ValueError("a defect")

    gauge = recorder.find(PressureGauge)
    assert gauge is not None
    gauge._look = fail  # type: ignore[method-assign]
    train(6)
    num_marks = len(recorder.phases.marks)
    train(6)
    grown = len(recorder.phases.marks) - num_marks
    return {"file": str(recording.detach()), "num_calls": len(calls), "grown": grown}


def out_of_memory() -> dict[str, Any]:
    """An allocation that fails, and is caught."""
    recording = attach()
    train(1)
    for _ in range(3):
        try:
            torch.empty(1 << 45, device="cuda")
        except torch.OutOfMemoryError:
            continue
    return {"file": str(recording.detach())}


print(json.dumps(globals()[WHAT]()))
