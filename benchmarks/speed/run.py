"""Measure what recording costs, steps and host memory; writes docs/results/speed.md.

    python -m benchmarks.speed.run --python env/bin/python [--repeats 5]

`env/bin/python` is the interpreter of an environment with torch, transformers and timm, such as
`ullage env env -r examples/requirements.txt` makes.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.provenance import made_by
from benchmarks.results import publish
from benchmarks.speed.measure import (
    Command,
    host_peak_bytes,
    interleave,
    median_steps_ms,
    median_wall_s,
    run_once,
)
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.launch import LIBRARY_DIR, LaunchOptions, make_environment
from ullage.players.phantom.torch_build import check_torch, find_torch
from ullage.verbs.run.options import RunOptions

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GPT2 = str(ROOT / "examples" / "gpt2" / "train.py")
GIB = 2**30
STEPS = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what was measured, the figure, the goal ("" where there is none)."""

    what: str
    figure: str
    goal: str


class Bench:
    """Where and under what to run: the interpreter, the phantom's GPU, a scratch folder."""

    def __init__(self, args: argparse.Namespace, scratch: Path) -> None:
        self.python = str(args.python)
        self.gpu = args.gpu
        self.num_repeats = args.repeats
        self.scratch = scratch
        self.build = check_torch(find_torch(self.python), LIBRARY_DIR)

    def under_ullage(self, *program: str) -> Command:
        """`ullage run` as a user types it."""
        ullage_script = str(Path(sys.executable).with_name("ullage"))
        options = ("--gpu", self.gpu, "--python", self.python)
        kept = ("--snapshot", "/dev/null")  # each run is made several times
        words = (ullage_script, "run", *options, *kept, "--", *program)
        return Command(words, os.environ)

    def on_phantom(self, *program: str, is_recorded: bool, has_real_init: bool = False) -> Command:
        """The program on the phantom without `ullage run` around it."""
        device, options = (
            choose_device(self.gpu),
            LaunchOptions(RunOptions((), real_init=has_real_init)),
        )
        environment = make_environment(self.scratch, device, self.build, options)
        return Command(
            (self.python, *program), environment | {"ULLAGE_RECORD": str(int(is_recorded))}
        )


def measure_gpt2(bench: Bench) -> list[Row]:
    """The cost of recording."""
    program = (GPT2, "--steps", str(STEPS))
    timings = interleave(
        {
            "bare": bench.on_phantom(*program, is_recorded=False),
            "recorded": bench.on_phantom(*program, is_recorded=True),
            "real_init": bench.on_phantom(*program, is_recorded=True, has_real_init=True),
        },
        bench.scratch,
        bench.num_repeats,
    )
    wall = {name: median_wall_s(rows) for name, rows in timings.items()}
    steps = {name: median_steps_ms(timings[name]) for name in ("bare", "recorded")}
    costs = f"{wall['recorded']:.2f} s against {wall['bare']:.2f} s"
    real_costs = f"{wall['real_init']:.2f} s against {wall['bare']:.2f} s"
    step_costs = f"{steps['recorded']:.0f} ms against {steps['bare']:.0f} ms"
    return [
        Row(
            f"GPT-2 124M, {STEPS} steps, recorded, against the bare phantom: whole process",
            f"**{wall['recorded'] / wall['bare']:.2f}x** ({costs})",
            "at most 1.25x",
        ),
        Row(
            "the same, with the weights really initialised, as the bare phantom does",
            f"{wall['real_init'] / wall['bare']:.2f}x ({real_costs})",
            "",
        ),
        Row(
            f"the same as the first of these: its {STEPS} steps alone",
            f"{steps['recorded'] / steps['bare']:.2f}x ({step_costs})",
            "",
        ),
    ]


def measure_llama(bench: Bench) -> Row:
    """A step of a Llama with 1.2 billion parameters, recorded; the first one is start-up."""
    timing = run_once(bench.under_ullage(str(HERE / "llama_steps.py")), bench.scratch)
    step_s = statistics.median(timing.steps_ms[1:]) / 1e3
    return Row(
        "one step of a Hugging Face Llama 1.2B, batch 4 x 4096, after the first",
        f"**{step_s:.3f} s** ({timing.wall_s:.1f} s in all)",
        "in the order of 0.1 s",
    )


def measure_host_memory(bench: Bench) -> list[Row]:
    """Host memory of whole runs, children included."""
    programs = {"GPT-2 124M": GPT2, "Llama 1.2B": str(HERE / "llama_steps.py")}
    rows = []
    for name, program in programs.items():
        peak = host_peak_bytes(bench.under_ullage(program), bench.scratch)
        rows.append(
            Row(
                f"host memory of `ullage run` of {name}, all processes",
                f"**{peak / GIB:.2f} GiB**",
                "under 3 GiB",
            )
        )
    return rows


def measure_mem_tracker(bench: Bench) -> list[Row]:
    """torch's own MemTracker on the same model, on the same phantom."""

    def account(mode: str) -> dict[str, Any]:
        command = bench.on_phantom(str(HERE / "mem_tracker.py"), GPT2, mode, is_recorded=False)
        account: dict[str, Any] = json.loads(run_once(command, bench.scratch).stdout)
        return account

    tracked, plain = account("tracked"), account("plain")
    error = tracked["tracked_bytes"] / plain["allocated_bytes"] - 1
    seconds = f"{tracked['seconds']:.2f} s against {plain['seconds']:.2f} s"
    peaks = f"{tracked['tracked_bytes']:,} B against {plain['allocated_bytes']:,} B"
    return [
        Row(
            f"`torch.distributed._tools.MemTracker` on the same GPT-2, {STEPS} steps, against none",
            f"{tracked['seconds'] / plain['seconds']:.1f}x ({seconds})",
            "",
        ),
        Row(
            "its peak, against the allocator's own on the phantom",
            f"{error:+.1%} ({peaks}); it knows no reserved bytes",
            "",
        ),
    ]


def render(rows: Sequence[Row], bench: Bench) -> str:
    """The page."""
    table = "\n".join(f"| {row.what} | {row.figure} | {row.goal} |" for row in rows)
    return f"""# Speed

{made_by("benchmarks.speed.run", torch=bench.build.version)}

The runs are on the phantom of `{bench.gpu}`. Compare the ratios, not the seconds: the commands of a
ratio ran in turn on one machine, and each figure is the median of {bench.num_repeats} executions
after a warm-up. [speed.md](speed.md#processor-time-as-ratios) has what whole commands take.

| what | measured | goal |
|---|---|---|
{table}

*Recorded* and *bare* are the same program on the phantom, started without `ullage run`, with
ullage's recording on and off.  Host memory is the
highest sum of resident memory over all processes, sampled every 20 ms; shared pages count in each
process.
"""


def main() -> None:
    """Measure everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="the interpreter with torch")
    parser.add_argument("--gpu", default="h100-80gb")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ullage-speed-") as directory:
        bench = Bench(args, Path(directory))
        rows = measure_gpt2(bench)
        rows.append(measure_llama(bench))
        rows += measure_host_memory(bench)
        rows += measure_mem_tracker(bench)
        page = render(rows, bench)
    publish("speed", page)
    print(page)


if __name__ == "__main__":
    main()
