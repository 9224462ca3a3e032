"""Measures what step times, retries and requests cost a recorded process; prints a JSON object.

    python pressure_program.py SOURCE_OF_ULLAGE

Times are of the process's CPU: the median of rounds, in microseconds.
"""

from __future__ import annotations

import json
import pickle
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

sys.path.insert(0, sys.argv[1])
import ullage
from ullage.players.inside.attached import current
from ullage.players.inside.pressure.gauge import PressureGauge

CALLS, ROUNDS = 2_000, 15
STEPS_OF_A_DAY, REQUESTS_OF_A_DAY = 864_000, 100_000
stats = torch._C._cuda_memoryStats


def time_us(call: Callable[[], object]) -> float:
    """CPU time of a call."""
    rounds = []
    for _ in range(ROUNDS):
        began_s = time.process_time()
        for _ in range(CALLS):
            call()
        rounds.append((time.process_time() - began_s) / CALLS * 1e6)
    return statistics.median(rounds)


def costs(mode: str) -> dict[str, float]:
    """A step and a request in a mode."""
    recording = ullage.record.attach(None, mode=mode, publish=False)
    recorder = current()
    gauge = None if recorder is None else recorder.find(PressureGauge)
    assert gauge is not None

    def step() -> None:
        gauge.end_step(1)

    def answer() -> None:
        with recording.request("chat"):
            pass

    document = {"step_us": time_us(step), "request_us": time_us(answer)}
    recording.detach()
    return document


def day() -> dict[str, int]:
    """What a day of steps and requests takes in a record: bytes as it is pickled."""
    recording = ullage.record.attach(None, mode="counters", publish=False)
    recorder = current()
    gauge = None if recorder is None else recorder.find(PressureGauge)
    assert gauge is not None
    draw = random.Random(0)
    for number in range(STEPS_OF_A_DAY):
        gauge.add_step(1 << 30, 1 << 31, draw.lognormvariate(-2.3, 0.5))
        if number % (STEPS_OF_A_DAY // REQUESTS_OF_A_DAY) == 0:
            with recording.request(f"kind {draw.randrange(40)}", 128):
                pass
    fields = gauge.pressure()
    recording.detach()
    return {"field_bytes": len(pickle.dumps(fields)), "num_windows": len(fields["windows"]),
            "num_requests": fields["num_requests"]}  # fmt: skip


def main() -> None:
    """Measures all."""
    torch.cuda.init()
    block = torch.empty(1 << 20, device="cuda")
    document: dict[str, Any] = {mode: costs(mode) for mode in ("counters", "events", "full")}
    document |= {"torch_us": time_us(lambda: stats(0)), "day": day(), "block": block.nbytes}
    print(json.dumps(document))


main()
