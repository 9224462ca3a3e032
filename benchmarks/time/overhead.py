"""What the log of work costs: GPT-2 and a Llama with 1.2 billion parameters, with and without
`--time`, in turn.

    python -m benchmarks.time.overhead --python ENV/bin/python
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.provenance import made_by
from benchmarks.results import publish
from benchmarks.speed.measure import Command, Timing, interleave

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = {
    "GPT-2 124M, 3 steps": ROOT / "examples" / "gpt2" / "train.py",
    "Llama-1B of transformers, 5 steps": ROOT / "benchmarks" / "speed" / "llama_steps.py",
}
KEPT_FROM = 1  # the first step also starts libraries up


def main() -> None:
    """Measures, prints, and writes the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--python", required=True, help="an environment with torch and transformers"
    )
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    python = str(Path(options.python).absolute())
    rows = []
    for name, program in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as directory:
            commands = {
                "plain": command(python, program),
                "timed": command(python, program, "--time"),
            }
            timings = interleave(commands, Path(directory), options.repeats)
        rows.append(row(name, timings))
        print(rows[-1], flush=True)
    publish("time-overhead", page(rows, options.repeats, torch_version(python)))


def torch_version(python: str) -> str:
    """The version of the environment's torch."""
    code = "from importlib.metadata import version; print(version('torch'))"
    return subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


def command(python: str, program: Path, *more: str) -> Command:
    """A run of a program."""
    words = (
        sys.executable, "-c", "from ullage.cli import main; main()", "run", "--gpu", "h100",
        "--snapshot", "/dev/null", "--python", python, *more, "--",
        str(program),
    )  # fmt: skip
    return Command(words, dict(os.environ))


def row(name: str, timings: dict[str, list[Timing]]) -> str:
    """A row of the table: medians, and their quotients."""
    walls = [statistics.median(timing.wall_s for timing in of) for of in timings.values()]
    steps = [
        statistics.median(ms for timing in of for ms in timing.steps_ms[KEPT_FROM:])
        for of in timings.values()
    ]
    return (
        f"| {name} | {walls[0]:.2f} s | {walls[1]:.2f} s | {walls[1] / walls[0]:.2f} "
        f"| {steps[0]:.1f} ms | {steps[1]:.1f} ms | {steps[1] / steps[0]:.2f} |"
    )


def page(rows: list[str], repeats: int, torch: str) -> str:
    """The page."""
    made = made_by("benchmarks.time.overhead --python ENV/bin/python", torch=torch)
    return f"""# What `--time` costs

{made}

`ullage run` of a program with and without `--time`, {repeats} times each in turn; medians.  Asked
for: a step of Llama-1B at most 1.1 times.

| program | command | with `--time` | quotient | step | with `--time` | quotient |
|---|---|---|---|---|---|---|
{chr(10).join(rows)}
"""


if __name__ == "__main__":
    main()
