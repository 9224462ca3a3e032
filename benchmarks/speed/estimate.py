"""Measure how soon `ullage estimate` answers, and write docs/results/speed.md.

python -m benchmarks.speed.estimate
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.facts.families.builtin import find_model
from ullage.facts.gpus.catalog import find_gpu
from ullage.players.eager.serving.serving import ServingPlan, estimate_serving
from ullage.players.eager.training.estimate import estimate_training
from ullage.players.eager.training.recipe import Recipe
from ullage.verbs.ui.answers import answer as answer_page

GPU = "h100-80gb"
WORKERS = 2
REPEATS = 7
COMPUTE_GOAL_MS = 20
LARGEST, LARGEST_GOAL_MS = "llama-3.1-405b", 16
PAGE_GOAL_MS = 30
PROCESS_GOAL_MS, PROCESS_GOAL_MIB = 200, 32
SWEEP_GOAL_S = 10
SINGLE = (
    "gpt2", "bert-base", "vit-base", "resnet50", "whisper-large-v3", "llama-3.1-8b",
    "llama-3.1-70b", "qwen3-30b-a3b", "deepseek-v3", "gemma-3-1b", "sdxl-unet",
)  # fmt: skip
SWEPT = ("gpt2-medium", "llama-3.2-1b", "llama-3.1-8b", "qwen2.5-7b", "mistral-7b")
LENGTHS = (512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True)
class Point:
    """A configuration of the sweep."""

    model: str
    recipe: Recipe


def sweep() -> Iterator[Point]:
    """A thousand: models, batches, lengths, precisions, checkpointing, optimizers."""
    for model, batch, length, precision, checkpointing, optimizer in itertools.product(
        SWEPT, (1, 2, 4, 8, 16), LENGTHS, ("bf16", "amp-bf16"), ("none", "full"), ("adamw", "sgd")
    ):
        long = min(length, find_model(model).config.number("n_positions", default=length))
        yield Point(model, Recipe(
            batch=batch, length=long, precision=precision, checkpointing=checkpointing,
            optimizer=optimizer,
        ))  # fmt: skip


def answer(point: Point) -> int:
    """What a configuration needs at most."""
    return estimate_training(find_model(point.model).config, point.recipe, find_gpu(GPU)).high_bytes


def time_sweep() -> tuple[int, float]:
    """(configurations, seconds by the wall's clock), the processes' start counted."""
    points = list(sweep())
    began_s = time.perf_counter()
    with ProcessPoolExecutor(WORKERS) as pool:
        found = list(pool.map(answer, points, chunksize=25))
    return len(found), time.perf_counter() - began_s


def median_ms(work: Callable[[], object]) -> float:
    """The median of some turns, by the processor's clock, which other programs do not stretch."""
    taken = []
    for _ in range(REPEATS):
        began_s = time.process_time()
        work()
        taken.append(time.process_time() - began_s)
    return 1000 * statistics.median(taken)


def recipe_of(model: str) -> Recipe:
    """A batch of two of what the model takes."""
    return Recipe(
        batch=2,
        length=min(448, 512) if model.startswith("whisper") else 512,
        image=512 if "unet" in model else 224,
    )


def answer_of_page() -> object:
    """What the calculator of `ullage ui` gets when a slider has moved, as text."""
    return json.dumps(
        answer_page({"model": "llama-3.1-8b", "gpu": GPU, "recipe": {"length": 4096}})
    )


def measure_process() -> tuple[float, float]:
    """The whole command: milliseconds of the processor, and MiB of resident memory at the peak."""
    program = str(Path(sys.executable).with_name("ullage"))
    command = [program, "estimate", "llama-3.1-8b", "--gpu", GPU, "--length", "4096"]
    # Without bytecode each process would compile what it imports.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    taken_s, peaks_kib = [], []
    for _ in range(REPEATS):
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        taken_s.append(usage.ru_utime + usage.ru_stime)
        peaks_kib.append(usage.ru_maxrss)
    return 1000 * statistics.median(taken_s), statistics.median(peaks_kib) / 1024


def main() -> None:
    """Measures and writes the page."""
    gpu = find_gpu(GPU)
    rows = []
    for name in (*SINGLE, LARGEST):
        config, recipe = find_model(name).config, recipe_of(name)

        def train() -> object:
            return estimate_training(config, recipe, gpu)  # noqa: B023

        goal_ms = LARGEST_GOAL_MS if name == LARGEST else COMPUTE_GOAL_MS
        rows.append((f"training {name}", median_ms(train), goal_ms))
    for name in ("llama-3.1-8b", "deepseek-v3", "gemma-3-1b"):
        config, plan = find_model(name).config, ServingPlan(gpu=gpu, context=8192)

        def serve() -> object:
            return estimate_serving(config, plan)  # noqa: B023

        rows.append((f"serving {name}", median_ms(serve), COMPUTE_GOAL_MS))
    rows.append(("the calculator's answer, llama-3.1-8b", median_ms(answer_of_page), PAGE_GOAL_MS))
    process_ms, process_mib = measure_process()
    rows.append(("the whole command, llama-3.1-8b", process_ms, PROCESS_GOAL_MS))
    rows.append(("the same, MiB of resident memory", process_mib, PROCESS_GOAL_MIB))
    count, seconds = time_sweep()
    table = "\n".join(f"| {what} | {took:.1f} | {goal} |" for what, took, goal in rows)
    publish(
        "speed-estimate",
        f"""# Speed of `ullage estimate`

{made_by("benchmarks.speed.estimate")}

Milliseconds of processor time: the median of {REPEATS} turns in one process, or of {REPEATS}
processes.

| what | measured | goal |
|---|--:|--:|
{table}

A sweep of {count:,} training configurations in {WORKERS} processes took {seconds:.1f} s
(goal: {SWEEP_GOAL_S}): {1000 * seconds * WORKERS / count:.1f} ms of one process for each.
""",
    )


if __name__ == "__main__":
    main()
