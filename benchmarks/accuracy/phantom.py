"""Record every workload on the phantom and write docs/results/accuracy.md.

    python -m benchmarks.accuracy.phantom --python env/bin/python --gpu h200 --out DIR [NAME ...]

Each workload is one `ullage run` of record.py, so that DIR holds the same files as a recording
from a real GPU and compare.py can hold the two together. The page lists what ran, its peaks, and
what the run document says of them; where truth/ has a recording by the same torch build on the same
GPU, also how far off they are.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.accuracy.compare import Comparison, compare, false_fits, highest
from benchmarks.accuracy.record import collect, note_error, part
from benchmarks.accuracy.workload_names import ALLOC_CONF, NAMES
from benchmarks.provenance import made_by
from benchmarks.results import publish

HERE = Path(__file__).parent
MIB = 2**20
RESERVED_BOUND = 0.01
# The line of a traceback that names the exception
_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Unsupported)\b")


@dataclass(frozen=True, slots=True)
class Result:
    """One workload under `ullage run`."""

    name: str
    error: str | None  # None: it ran
    document: dict[str, Any] | None  # the run document, where there is one


def run_workload(name: str, parts: Path, args: argparse.Namespace) -> Result:
    """Record one workload on the phantom; writes parts/NAME.json and parts/NAME.npz."""
    command = [str(Path(sys.executable).with_name("ullage")), "run", "--gpu", args.gpu, "--json"]
    if args.python:
        command += ["--python", str(args.python)]
    variables = {"PYTORCH_ALLOC_CONF": ALLOC_CONF[name]} if name in ALLOC_CONF else {}
    command += ["--", str(HERE / "record.py"), "--out", str(parts.resolve()), "--one", name]
    try:
        done = subprocess.run(
            command,
            cwd=parts,
            capture_output=True,
            text=True,
            timeout=args.timeout,
            check=False,
            env={**os.environ, **variables},
        )
    except subprocess.TimeoutExpired:
        return Result(name, f"over {args.timeout} s", None)
    try:
        document = json.loads(done.stdout)
    except ValueError:
        document = None
    if done.returncode == 0:
        (parts / f"{name}.run.json").write_text(done.stdout)
        return Result(name, None, document)
    lines = done.stderr.strip().splitlines() or ["no message"]
    errors = [line for line in lines if _ERROR.match(line)]
    if document and document.get("reason"):
        errors = [document["reason"]]
    return Result(name, (errors or lines)[-1].strip()[:200], document)


def earlier(name: str, parts: Path) -> Result | None:
    """What an earlier call left of a workload that ran; None if there is nothing."""
    row, path = part(name, parts), parts / f"{name}.run.json"
    if row is None or "error" in row or not path.exists():
        return None
    return Result(name, None, json.loads(path.read_text()))


def mib(num_bytes: int) -> str:
    """Bytes as MiB with two decimals."""
    return f"{num_bytes / MIB:,.2f}"


def basis_of(result: Result) -> str:
    """The basis of the allocator's bytes, as the run document has it."""
    return result.document["basis"]["allocator"]["kind"] if result.document else "?"


def result_row(result: Result, row: dict[str, Any]) -> str:
    """One line of the page's table."""
    if result.error:
        return f"| `{result.name}` | {result.error.replace('|', '/')} | | | | | | |"
    peak = highest(row)
    peaks = " | ".join(mib(peak[name]) for name in ("requested", "allocated", "reserved"))
    unattributed, wall = "?", "?"
    if result.document:
        device = result.document["devices"][0]
        share = device["at_peak"]["unattributed"] / max(device["peak_allocated_bytes"], 1)
        unattributed = f"{share:.1%}"
        wall = f"{result.document['wall_s']:.1f}"
    tail = f"{row['num_events']:,} | {unattributed} | {basis_of(result)} | {wall}"
    return f"| `{result.name}` | ran | {peaks} | {tail} |"


def truth_folders(environment: dict[str, Any]) -> list[Path]:
    """The recordings in truth/ by the same torch on the same GPU."""
    found = []
    for folder in sorted(path.parent for path in (HERE / "truth").glob("*/truth.json")):
        truth = json.loads((folder / "truth.json").read_text())
        there = next((row for row in truth.values() if "error" not in row), {})
        if all(there.get(key) == environment.get(key) for key in ("torch", "gpu")):
            found.append(folder)
    return found


def bound_lines(folders: list[Path], out: Path, exact: set[str]) -> list[str]:
    """What must hold against every recording, and whether it was shown to."""
    names = (
        "every event is equal if no closed library chooses a size (basis *exact*)",
        f"peak reserved within {RESERVED_BOUND:.0%} elsewhere",
        "no workload fits here that ran out of memory there",
    )
    rows = [item for folder in folders for item in compare(folder, out).items()]
    both = [(name, row) for name, row in rows if isinstance(row, Comparison)]
    equal = [row.first_difference is None for name, row in both if name in exact]
    near = [
        abs(row.errors["reserved"]) <= RESERVED_BOUND for name, row in both if name not in exact
    ]
    honest = [not false_fits(folder, out) for folder in folders]
    holds = [all(found) if found else None for found in (equal, near, honest)]
    words = {None: "not shown", True: "holds", False: "**does not hold**"}
    lines = [f"- {name}: {words[held]}" for name, held in zip(names, holds, strict=True)]
    if not folders:
        lines += ["", "The repository has no recording of this torch build on this GPU yet."]
    off = [100 * abs(row.errors["reserved"]) for _, row in both]
    if off:
        num_equal = sum(row.first_difference is None for _, row in both)
        lines.append(
            f"- {num_equal} of {len(both)} workloads have all events equal; peak reserved is "
            f"{median(off):.3f}% off in the median, {max(off):.3f}% at worst"
        )
    return [*lines, ""]


def truth_lines(folders: list[Path], out: Path) -> list[str]:
    """How this recording compares with each of those, workload by workload."""
    lines = []
    for folder in folders:
        lines += [
            f"### {folder.name}",
            "",
            "| workload | events | allocated | reserved |",
            "|---|---|---|---|",
        ]
        for name, row in compare(folder, out).items():
            if not isinstance(row, Comparison):
                lines.append(f"| `{name}` | not comparable: {row.replace('|', '/')} | | |")
                continue
            place = (
                "all equal"
                if row.first_difference is None
                else f"differ at {row.first_difference:,}"
            )
            errors = f"{row.errors['allocated']:+.3%} | {row.errors['reserved']:+.3%}"
            lines.append(f"| `{name}` | {place} of {row.num_events[0]:,} | {errors} |")
        lines.append("")
    return lines


def render(results: list[Result], truth: dict[str, Any], out: Path) -> str:
    """The page."""
    environment = next((row for row in truth.values() if "error" not in row), {})
    num_ran = sum(result.error is None for result in results)
    device = f"{environment.get('gpu')}, compute capability {environment.get('capability')}"
    introduction = f"""# Peaks of workloads on an {environment.get("gpu")}

{made_by("benchmarks.accuracy.phantom", torch=environment.get("torch"))}

{num_ran} of {len(results)} workloads of `benchmarks/accuracy` run on the phantom of an {device},
with torch {environment.get("torch")}. Peaks over four steps are in MiB, from
`torch.cuda.memory_stats()` in the program; *unowned* is the fraction of the allocated peak without
an owner, *basis* that of the allocator's bytes, *s* the seconds of the whole run.
"""
    folders = truth_folders(environment)
    exact = {result.name for result in results if basis_of(result) == "exact"}
    lines = [
        introduction,
        "| workload | result | requested | allocated | reserved | events | unowned | basis | s |",
        "|---|---|---|---|---|---|---|---|---|",
        *(result_row(result, truth[result.name]) for result in results),
        "",
        "## Against real GPUs",
        "",
        *bound_lines(folders, out, exact),
        *truth_lines(folders, out),
    ]
    return "\n".join(lines)


def main() -> None:
    """Run all workloads, or those named; one line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the recording")
    parser.add_argument(
        "--python", type=Path, help="the interpreter with torch, transformers and timm"
    )
    parser.add_argument("--gpu", default="h100-80gb")
    parser.add_argument("--timeout", type=int, default=600, help="seconds a workload")
    parser.add_argument("--missing", action="store_true", help="keep what DIR holds already")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    if unknown := set(args.names) - set(NAMES):
        parser.error(
            f"no workload is called {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}"
        )
    parts = args.out / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    results = []
    for name in args.names or NAMES:
        done = earlier(name, parts) if args.missing else None
        results.append(done or run_workload(name, parts, args))
        if error := results[-1].error:
            note_error(name, parts, error)
        print(f"{name:28} {results[-1].error or 'ran'}", flush=True)
    truth = collect(parts, args.out)
    publish(f"accuracy-{args.gpu.partition('-')[0]}", render(results, truth, args.out))


if __name__ == "__main__":
    main()
