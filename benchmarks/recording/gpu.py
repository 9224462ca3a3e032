"""Record, watch and guard on the GPU of this machine; docs/results/truth.md shows it.

    python -m benchmarks.recording.gpu DIR

Needs torch, transformers and timm in the interpreter that runs it, and ullage with what its `watch`
needs. Takes about four minutes; each part has a limit, and leaves its files in DIR.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.recording.bare import MAIN, ROOT

# What runs at once, each twice: together they leave a GPU of 80 GB some room.
EXAMPLES = (
    ("gpt2/train.py", "resnet50/train.py", "mlp_phases/train.py", "residual_net/train.py"),
    ("llama_trainer/train.py", "lstm/train.py", "massive_mimo/simulate.py"),
    ("moe/train.py", "bert_accelerate/train.py", "generate/generate.py", "growing_losses/train.py"),
)
FULL = "out_of_memory/train.py"
# What the program itself would say at its end; nothing of ullage is in the process.
ALONE = """
import atexit, json, runpy, sys
import torch
out = sys.argv.pop(1)
def say():
    if torch.cuda.is_initialized():
        stats = torch.cuda.memory_stats()
        json.dump({key: value for key, value in stats.items() if "all" in key}, open(out, "w"))
atexit.register(say)
sys.argv.pop(0)
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def start(command: Sequence[str], log: Path) -> subprocess.Popen[Any]:
    """A program whose output goes to a file."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    with log.open("w") as output:
        return subprocess.Popen(
            command, cwd=log.parent, env=environment, stdout=output, stderr=subprocess.STDOUT
        )


def finish(process: subprocess.Popen[Any], limit_s: float, *, asks: bool = False) -> None:
    """Wait for a program; at its limit, or at once where it is to be asked, end it."""
    try:
        if asks:
            process.terminate()
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def ullage(*words: str) -> list[str]:
    """A command of ullage."""
    return [sys.executable, *MAIN[1:], *words]


def record(name: str, place: Path, mode: str = "full") -> list[str]:
    """The command that records an example."""
    stem = name.partition("/")[0]
    for ending in ("ullage", "json"):
        (place / f"{stem}.{ending}").unlink(missing_ok=True)
    return ullage(
        "record", "--mode", mode, "--snapshot", str(place / f"{stem}.ullage"),
        "-o", str(place / f"{stem}.json"), "--", str(ROOT / "examples" / name),
    )  # fmt: skip


def watchers(place: Path) -> list[subprocess.Popen[Any]]:
    """What watches, each with a file of its own."""
    listed = "--query-compute-apps=pid,used_memory"
    state = "--query-gpu=memory.used,utilization.gpu,temperature.gpu,power.draw,clocks.sm"
    commands = {
        "watch.jsonl": ullage("watch", "--json", "--interval", "0.1"),
        "alerts.txt": ullage("watch", "--alerts"),
        "smi.csv": ["nvidia-smi", state, "--format=csv", "-lms", "500"],
        "smi-apps.csv": ["nvidia-smi", listed, "--format=csv", "-lms", "500"],
        "listen.txt": ullage("watch", "--listen", "19400"),
    }
    there = {name: words for name, words in commands.items() if shutil.which(words[0])}
    return [start(words, place / name) for name, words in there.items()]


def twice(name: str, place: Path) -> list[subprocess.Popen[Any]]:
    """An example recorded, and alone."""
    stem, program = name.partition("/")[0], str(ROOT / "examples" / name)
    alone = [sys.executable, "-c", ALONE, str(place / f"{stem}.alone.json"), program]
    return [
        start(record(name, place), place / f"{stem}.txt"),
        start(alone, place / f"{stem}.alone.txt"),
    ]


def examples(place: Path) -> None:
    """Each example recorded and alone, under the eyes of the watchers."""
    watching = watchers(place)
    time.sleep(3)
    for index, group in enumerate(EXAMPLES):
        jobs = [job for name in group for job in twice(name, place)]
        if index == 0:
            time.sleep(9)
            url = "http://127.0.0.1:19400/metrics"
            finish(start(["curl", "-s", url], place / "metrics.txt"), 5)
            finish(start(ullage("watch", "--once"), place / "once.txt"), 10)
        for job in jobs:
            finish(job, 30)
    finish(start(record(FULL, place, "events"), place / "full.txt"), 40)
    for each in watching:
        finish(each, 5, asks=True)


def main() -> None:
    """Run all parts, and join what is small into one file."""
    place = Path(sys.argv[1]).resolve()
    place.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    program = str(ROOT / "benchmarks" / "guard" / "gpu_program.py")
    guarded = [sys.executable, program, str(ROOT / "src"), "12"]
    parts = (
        ("examples", lambda: examples(place)),
        ("guard", lambda: finish(start(guarded, place / "guard.txt"), 80)),
    )
    for name, part in parts:
        part()
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)
    texts = {path.name: path.read_text(errors="replace") for path in place.glob("*.*")
             if path.suffix in (".txt", ".json", ".csv", ".jsonl")}  # fmt: skip
    (place / "all.json").write_text(json.dumps(texts))


if __name__ == "__main__":
    main()
