"""Measure what step times, retries and requests cost, and write docs/results/record.md.

    python -m benchmarks.recording.pressure --python .envs/torch-newest/bin/python

The GPU is the bare phantom. Ends with exit code 1 where a day takes more than was allowed.
"""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.provenance import made_by, torch_version
from benchmarks.recording.bare import ROOT, bare_environment
from benchmarks.results import publish

PROGRAM = Path(__file__).with_name("pressure_program.py")
MODES = ("counters", "events", "full")
MIB = 1 << 20
MOST_BYTES = MIB


def measure(python: Path) -> dict[str, Any]:
    """Runs the program on the bare phantom."""
    command = [str(python), str(PROGRAM), str(ROOT / "src")]
    environment = bare_environment(python)
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def page(document: dict[str, Any], torch: str) -> str:
    """The page."""
    day = document["day"]
    rows = []
    for mode in MODES:
        step_us, request_us = document[mode]["step_us"], document[mode]["request_us"]
        rows.append(f"| `--mode {mode}` | {step_us:.0f} | {request_us:.0f} |")
    return "\n".join(
        [
            "# What pressure and requests cost a recording",
            "",
            made_by("benchmarks.recording.pressure --python ENV/bin/python", torch=torch),
            "",
            "The GPU is the bare phantom. CPU time of the host, in microseconds, for the end of a",
            "step (its peaks, time, retries, cudaFrees and fragmentation) and for a request (its",
            "begin and its end), with one device in use. PyTorch's own answer to",
            f"`torch._C._cuda_memoryStats` is {document['torch_us']:.0f} us of that: a step asks",
            "once, a request twice. ",
            "",
            "| mode | a step, us | a request, us |",
            "|---|---|---|",
            *rows,
            "",
            f"A day of 864,000 steps and {day['num_requests']:,} requests of 40 names takes",
            f"{day['field_bytes'] / 1024:.0f} KiB in a record, with {day['num_windows']} windows",
            "of steps. The day itself is simulated: steps are noted without a day of waiting.",
            "",
        ]
    )


def main() -> int:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True, metavar="PATH")
    python = parser.parse_args().python.absolute()
    document = measure(python)
    publish("record-pressure", page(document, torch_version(python)))
    return int(document["day"]["field_bytes"] > MOST_BYTES)


if __name__ == "__main__":
    raise SystemExit(main())
