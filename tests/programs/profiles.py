"""Profiles its own steps with PyTorch's profiler, in the way that the first argument names; its
last line is JSON: what the profiles say.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

CASE = sys.argv[1]
SIZE = 4096
ACTIVITIES = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
NUM_STEPS = 3


class Trainer:
    """A small network on a device."""

    def __init__(self, device: str = "cuda:0") -> None:
        layers = torch.nn.Linear(SIZE, SIZE), torch.nn.GELU(), torch.nn.Linear(SIZE, SIZE)
        self.model = torch.nn.Sequential(*layers).to(device, torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.batch = torch.randn(8192, SIZE, device=device, dtype=torch.bfloat16)

    def step(self) -> float:
        """Seconds of a step, by the program's own clock."""
        torch.cuda.synchronize(self.batch.device)
        begin_s = perf_counter()
        with record_function("loss"):
            loss = self.model(self.batch).float().pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        torch.cuda.synchronize(self.batch.device)
        return perf_counter() - begin_s


def device_s(of: Any) -> float:
    """Seconds on the device, of all operators and kernels of a profile."""
    return sum(row.self_device_time_total for row in of.key_averages() if is_device(row)) / 1e6


def is_device(row: Any) -> bool:
    return row.device_type.name == "CUDA" and not row.is_user_annotation


def operator_s(of: Any) -> dict[str, float]:
    """Seconds on the device, of what each operator itself has launched."""
    return {
        row.key: row.self_device_time_total / 1e6
        for row in of.key_averages()
        if row.device_type.name == "CPU" and row.self_device_time_total
    }


def read_trace(file: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(file.read_text())["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def describe(of: Any, name: str = "trace.json") -> dict[str, Any]:
    """What a profile and its file say."""
    of.export_chrome_trace(name)
    events = read_trace(Path(name))
    kernels = [event for event in events if event["cat"] == "kernel"]
    return {
        "device_s": device_s(of),
        "operator_s": operator_s(of),
        "categories": Counter(event["cat"] for event in events),
        "trace_s": sum(event["dur"] for event in events if is_on_device(event)) / 1e6,
        "devices": sorted({event["args"]["device"] for event in kernels}),
        "names": sorted({event["name"] for event in kernels}),
        "steps_s": [
            event["dur"] / 1e6
            for event in events
            if event["name"].startswith("ProfilerStep") and event["cat"] == "user_annotation"
        ],
        "early": sum(is_early(event, events) for event in kernels),
    }


def is_on_device(event: dict[str, Any]) -> bool:
    return event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")


def is_early(kernel: dict[str, Any], events: list[dict[str, Any]]) -> bool:
    """Whether a kernel begins before its launch, or is of no operator."""
    number = kernel["args"]["correlation"]
    of_call = [event for event in events if event.get("args", {}).get("correlation") == number]
    launches = [event for event in of_call if event["cat"] in ("cuda_runtime", "cuda_driver")]
    if len(launches) != 1 or "External id" not in kernel["args"]:
        return True
    return bool(kernel["ts"] < launches[0]["ts"] - 0.001)


def scheduled(trainer: Trainer) -> dict[str, Any]:
    """The usual loop: wait, warm up, record; each step waits for the device."""
    told: list[dict[str, Any]] = []
    cycle = schedule(wait=1, warmup=1, active=NUM_STEPS)
    steps_s = []
    with profile(
        activities=ACTIVITIES,
        schedule=cycle,
        on_trace_ready=lambda of: told.append(describe(of)),
        record_shapes=True,
        profile_memory=True,
    ) as of:
        for _ in range(2 + NUM_STEPS):
            steps_s.append(trainer.step())
            of.step()
    return {**told[0], "perf_counter_s": steps_s[-1], "step_ends": len(told)}


def unwaited(trainer: Trainer) -> dict[str, Any]:
    """The device works longer than the host gives work, and longer than the process really runs."""
    with profile(activities=ACTIVITIES) as of:
        for _ in range(200):
            trainer.batch @ trainer.batch.T
    return describe(of)


def legacy(trainer: Trainer) -> dict[str, Any]:
    """By CUPTI, and by events around each operator."""
    told = {}
    for has_kineto in (True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            device = torch.autograd.profiler.profile(use_device="cuda", use_kineto=has_kineto)
        with device as of:
            step_s = trainer.step()
        told[f"{has_kineto}"] = {
            "device_s": device_s(of),
            "operator_s": operator_s(of),
            "perf_counter_s": step_s,
        }
    with torch.autograd.profiler.emit_nvtx():
        trainer.step()
    return told


def twice(trainer: Trainer) -> dict[str, Any]:
    """Both are read after both have ended."""
    profiles = []
    for _ in range(2):
        with profile(activities=ACTIVITIES) as of:
            trainer.step()
        profiles.append(of)
    with profile(activities=[ProfilerActivity.CPU]):
        trainer.step()
    one, other = (describe(of, f"trace-{i}.json") for i, of in enumerate(profiles))
    return {"one": one, "other": other}


def two_devices(trainer: Trainer) -> dict[str, Any]:
    second = Trainer("cuda:1")
    second.step()
    with profile(activities=ACTIVITIES) as of:
        steps_s = [trainer.step(), second.step()]
    return {**describe(of), "perf_counter_s": sum(steps_s)}


def tensorboard(trainer: Trainer) -> dict[str, Any]:
    ready = torch.profiler.tensorboard_trace_handler("boards")
    with profile(activities=ACTIVITIES, on_trace_ready=ready):
        trainer.step()
    (file,) = Path("boards").glob("*.pt.trace.json")
    return {"categories": Counter(event["cat"] for event in read_trace(file))}


def main() -> None:
    """Profiles after two steps without."""
    trainer = Trainer()
    trainer.step()
    trainer.step()
    print(json.dumps(globals()[CASE](trainer)))


if __name__ == "__main__":
    main()
