"""Run every example on several GPUs and versions of torch, and write docs/results/programs.md.

python -m benchmarks.examples --python env-2.15/bin/python --python env-2.11/bin/python
"""

import argparse
import itertools
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.ground.units import format_bytes

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = (
    "gpt2/train.py",
    "llama_trainer/train.py",
    "resnet50/train.py",
    "vit_lightning/train.py",
    "bert_accelerate/train.py",
    "unet_diffusers/train.py",
    "generate/generate.py",
    "lstm/train.py",
    "moe/train.py",
    "mlp_phases/train.py",
    "residual_net/train.py",
    "residual_net/train.py --checkpoint",
    "massive_mimo/simulate.py",
    "massive_mimo/simulate.py --precoder mmse",
    "growing_losses/train.py",
    "out_of_memory/train.py",
    "out_of_memory/halve_batch.py",
)
"""A program of examples/ and its flags."""
GPUS = ("h100-80gb", "a100-80gb", "rtx-4090", "t4")
AT_ONCE = 2
VERDICTS = {"fits": "fits", "out_of_memory": "does not fit", "failed": "failed"}


@dataclass(frozen=True, slots=True)
class Result:
    """One example on one GPU: what `ullage run --json` said."""

    example: str
    gpu: str
    document: dict[str, Any]

    def row(self) -> str:
        """A line of the table."""
        device = self.document["devices"][0] if self.document["devices"] else None
        figures = ["-"] * 3
        if device is not None:
            keys = ("peak_allocated_bytes", "peak_reserved_bytes", "headroom_bytes")
            figures = [format_bytes(device[key], 2) for key in keys]
        verdict = VERDICTS[self.document["verdict"]]
        if device is not None and device["num_ooms"] and verdict == "fits":
            verdict += f", after {device['num_ooms']} caught"
        if verdict == "does not fit":
            figures[2] = "-"
        seconds = f"{self.document['wall_s']:.1f}"
        return f"| `{self.example}` | {self.gpu} | {verdict} | {' | '.join(figures)} | {seconds} |"


def run_example(python: Path, example: str, gpu: str) -> Result:
    """Run one example on one GPU under an interpreter.

    Raises:
        SystemExit: the run left no document.
    """
    name, *flags = shlex.split(example)
    with tempfile.TemporaryDirectory(prefix="ullage-examples-") as directory:
        options = ("--gpu", gpu, "--python", str(python), "--json")
        snapshot = ("--snapshot", str(Path(directory) / "snapshot.pickle"))
        command = (sys.executable, "-c", "from ullage.cli import main; main()", "run")
        done = subprocess.run(
            [*command, *options, *snapshot, "--", str(ROOT / "examples" / name), *flags],
            cwd=directory, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if not done.stdout:
        raise SystemExit(f"{example} on {gpu} gave no document:\n{done.stderr[-2000:]}")
    result = Result(example, gpu, json.loads(done.stdout))
    print(result.row(), file=sys.stderr, flush=True)
    if result.document["verdict"] == "failed":
        print(done.stderr[-2000:], file=sys.stderr, flush=True)
    return result


def run_examples(python: Path, examples: Sequence[str], gpus: Sequence[str]) -> Iterator[Result]:
    """Run each example on each GPU under one interpreter, AT_ONCE at a time; results in order."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(
            lambda pair: run_example(python, *pair), itertools.product(examples, gpus)
        )


def render(results_by_torch: dict[str, list[Result]]) -> str:
    """The page."""
    columns = ("example", "GPU", "verdict", "allocated", "reserved", "headroom", "s")
    head = f"| {' | '.join(columns)} |\n|---|---|---|--:|--:|--:|--:|"
    tables = "\n\n".join(
        f"## torch {torch}\n\n{head}\n" + "\n".join(result.row() for result in results)
        for torch, results in results_by_torch.items()
    )
    versions = " and ".join(results_by_torch)
    return f"""# The examples on simulated GPUs

{made_by("benchmarks.examples", torch=versions)}

The table has every program of `examples/` with its flags. The libraries of
`examples/requirements.txt` have the same versions with every torch.
*allocated* and *reserved* are the peaks of PyTorch's allocator. *headroom* is the memory of the
device that the highest peak leaves, with the upper bound of the driver context. *s* is the wall
time of the whole run with its start, while the machine also did other work. If an example
does not fit, the peaks end where it ran out of memory. The figures have not been compared with real
GPUs of these kinds yet.

{tables}
"""


def main() -> None:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--python", type=Path, required=True, action="append", help="an interpreter with torch"
    )
    args = parser.parse_args()
    results_by_torch: dict[str, list[Result]] = {}
    for python in args.python:
        results = list(run_examples(python.absolute(), EXAMPLES, GPUS))
        results_by_torch[results[0].document["torch"]] = results
    publish("examples", render(results_by_torch))
    failed = [
        f"{result.example} on {result.gpu}, torch {torch}"
        for torch, results in results_by_torch.items()
        for result in results
        if result.document["verdict"] == "failed"
    ]
    if failed:
        raise SystemExit("failed:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
