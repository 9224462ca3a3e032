"""Hold the clock against steps and kernels recorded on a real GPU; write docs/results/time.md.

    python -m benchmarks.time.recorded --python ENV/bin/python --work DIR [NAME ...]

The same code (benchmarks/accuracy/timing.py) runs on the phantom under `--clock virtual`; ENV has
the torch of the recording. What DIR has already is not run again.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.provenance import made_by, torch_version
from benchmarks.results import publish

ROOT = Path(__file__).resolve().parent.parent.parent
TRUTH = ROOT / "benchmarks" / "accuracy" / "truth" / "h200-torch2.11.0" / "times.json"
RECORD = ROOT / "benchmarks" / "accuracy" / "record.py"
GPU = "h200"
Kernels = dict[str, list[float]]
# Parts of a kernel's name, the first that is in it, and the kind of work; of both, GPU and phantom.
KINDS = (
    ("attention", "attention"), ("sdpa", "attention"), ("fmha", "attention"),
    ("flash", "attention"), ("nvjet", "matrix products"), ("gemm", "matrix products"),
    ("gemv", "matrix products"), ("cutlass", "matrix products"), ("splitK", "matrix products"),
    ("matrix product", "matrix products"), ("triton", "triton"), ("multi_tensor", "optimizer"),
    ("layer_norm", "normalisation"), ("GammaBeta", "normalisation"), ("SoftMax", "softmax"),
    ("softmax", "softmax"), ("reduce_kernel", "reductions"), ("elementwise", "elementwise"),
    ("CatArray", "copies"), ("Memcpy", "copies"), ("Memset", "copies"), ("copy", "copies"),
)  # fmt: skip


def kind_of(name: str) -> str:
    """The kind of work of a kernel."""
    return next((kind for part, kind in KINDS if part in name), "others")


def predict(name: str, python: Path, work: Path) -> dict[str, Any] | None:
    """What the phantom's clock says of a workload; None where it did not run."""
    path = work / f"{name}.times.json"
    if not path.exists():
        command = [
            str(Path(sys.executable).with_name("ullage")), "run", "--gpu", GPU, "--python",
            str(python), "--clock", "virtual", "--snapshot", str(work / "run.pickle"),
            "--", str(RECORD), "--out", str(work), "--one", name, "--times",
        ]  # fmt: skip
        (work / "run.pickle").unlink(missing_ok=True)
        subprocess.run(command, cwd=work, capture_output=True, check=False)
    return json.loads(path.read_text()) if path.exists() else None


def busy_ms(kernels: Kernels) -> float:
    """Time of all kernels."""
    return sum(microseconds for _, microseconds in kernels.values()) / 1e3


def by_kind(kernels: Kernels) -> dict[str, float]:
    """Milliseconds of each kind of work."""
    times: dict[str, float] = defaultdict(float)
    for name, (_, microseconds) in kernels.items():
        times[kind_of(name)] += microseconds / 1e3
    return times


def step_row(name: str, truth: dict[str, Any], told: dict[str, Any] | None) -> str:
    """A line of the table of steps."""
    step, busy = 1e3 * truth["median_step_seconds"], busy_ms(truth["kernels"])
    if told is None:
        return f"| `{name}` | {step:.2f} | {busy:.2f} | did not run | | |"
    step_told, busy_told = 1e3 * told["median_step_seconds"], busy_ms(told["kernels"])
    return (
        f"| `{name}` | {step:.2f} | {busy:.2f} | {step_told:.2f} | {busy_told:.2f} | "
        f"{100 * (busy_told / busy - 1):+.1f} % |"
    )


def kind_rows(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    """Lines of the table of kinds: of all workloads' kernels, and the median over workloads."""
    ratios: dict[str, list[float]] = defaultdict(list)
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for truth, told in pairs:
        real, ours = by_kind(truth["kernels"]), by_kind(told["kernels"])
        for kind in real.keys() | ours.keys():
            sums[kind][0] += real.get(kind, 0.0)
            sums[kind][1] += ours.get(kind, 0.0)
            if real.get(kind, 0.0) > 0.1 and ours.get(kind, 0.0) > 0:
                ratios[kind].append(ours[kind] / real[kind])
    ordered = sorted(sums, key=lambda kind: -sums[kind][0])
    return [
        f"| {kind} | {sums[kind][0]:.1f} | {sums[kind][1]:.1f} | "
        + (f"{statistics.median(ratios[kind]):.2f} |" if ratios[kind] else "|")
        for kind in ordered
    ]


def page(truth: dict[str, Any], told: dict[str, Any], torch: str) -> str:
    """The page."""
    pairs = [(truth[name], row) for name, row in told.items() if row is not None]
    errors = [abs(busy_ms(b["kernels"]) / busy_ms(a["kernels"]) - 1) for a, b in pairs]
    errors.sort()
    low = [b["median_step_seconds"] / a["median_step_seconds"] for a, b in pairs]
    rows = "\n".join(step_row(name, truth[name], row) for name, row in told.items())
    kinds = "\n".join(kind_rows(pairs))
    middle, ninth = statistics.median(errors), errors[int(0.9 * (len(errors) - 1))]
    return f"""# Times beside a real H200

{made_by("benchmarks.time.recorded --python ENV/bin/python --work DIR", torch=torch)}

{len(pairs)} workloads of `benchmarks/accuracy`, recorded on one NVIDIA H200 (torch 2.11.0+cu130,
driver 580.159.04): the median of eight steps, each from an idle GPU to an idle GPU, and the
kernels of a ninth by PyTorch's profiler. The phantom ran the same code under `--clock virtual`.
**No constant of the clock was changed after these were seen.**

Time of all kernels of a step: median error {100 * middle:.1f} %, ninth decile {100 * ninth:.1f}
%. Step beside step the prediction is {statistics.median(low):.2f} of the recorded one in the
median: a program that waits for the host has a step longer than its kernels, and up to five
other processes imported PyTorch on that machine meanwhile, so that the recorded steps of small
models are too long; the kernels' own times are not touched by that.

| workload | step | its kernels | step, predicted | its kernels, predicted | error of the kernels |
|---|---|---|---|---|---|
{rows}

The same by kinds of work, summed over the workloads; *ratio* is the median over workloads of
predicted by recorded:

| kind | recorded | predicted | ratio |
|---|---|---|---|
{kinds}
"""


def main() -> None:
    """Run, and write the page."""
    truth = json.loads(TRUTH.read_text())
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("names", nargs="*", default=list(truth))
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    work = args.work.resolve()
    told = {name: predict(name, args.python.absolute(), work) for name in args.names or truth}
    publish("time-h200", page(truth, told, torch_version(args.python)))


if __name__ == "__main__":
    main()
