"""The task that `ullage serve` hands to the engine's process: a JSON and an .npz file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ullage.operate.serve.host_time import NO_HOST_TIME, HostTime
from ullage.operate.serve.traffic import Traffic

_COLUMNS = (
    "arrival_s", "prompt_tokens", "output_tokens", "class_index", "block_hashes", "block_offsets",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Task:
    """The order.

    Attributes:
        arguments: the words after `vllm serve`, the model a directory first.
        config: the model's config.json.
        gpu: the GPU's name in the catalogue.
        traffic: the requests.
        loads: factors of the traffic's rate; it is sent once for each. Empty: the engine
            only starts.
        host: what the host takes for a step.
        result: the file for the outcome.
        compile_cache: the directory of the compile cache, which outlives the engine's process;
            None: the run's own, so that the engine starts without one.
    """

    arguments: tuple[str, ...]
    config: str
    gpu: str
    traffic: Traffic
    result: str
    loads: tuple[float, ...] = (1.0,)
    host: HostTime = NO_HOST_TIME
    compile_cache: str | None = None


def write_task(task: Task, directory: Path) -> Path:
    """Writes an order into a directory; returns the file that read_task reads."""
    traffic = task.traffic
    np.savez(directory / "traffic.npz", **{name: getattr(traffic, name) for name in _COLUMNS})
    others = {
        "source": traffic.source, "classes": traffic.classes, "block_tokens": traffic.block_tokens,
        "num_users": traffic.num_users, "num_left_out": traffic.num_left_out,
        "think_s": traffic.think_s,
    }  # fmt: skip
    document = {
        "arguments": task.arguments, "config": task.config, "gpu": task.gpu,
        "result": task.result, "traffic": others, "loads": task.loads, "host": task.host,
        "compile_cache": task.compile_cache,
    }  # fmt: skip
    path = directory / "task.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def read_task(path: Path) -> Task:
    """Reads what write_task wrote."""
    document = json.loads(path.read_text(encoding="utf-8"))
    others = document["traffic"]
    with np.load(path.parent / "traffic.npz") as columns:
        traffic = Traffic(
            classes=tuple(others.pop("classes")),
            **{name: columns[name] for name in _COLUMNS},
            **others,
        )
    return Task(
        tuple(document["arguments"]), document["config"], document["gpu"], traffic,
        document["result"], tuple(document["loads"]), HostTime(*document["host"]),
        document["compile_cache"],
    )  # fmt: skip
