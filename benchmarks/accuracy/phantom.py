"""Record every workload on the phantom and write docs/accuracy.md.

    python -m benchmarks.accuracy.phantom --python env/bin/python --gpu h200 --out DIR [NAME ...]

Each workload is one `ullage run` of record.py, so that DIR holds the same files as a recording
from a real GPU and compare.py can hold the two together. The page lists what ran, its peaks, and
what the run document says of them; where truth/ has a recording by the same torch build on the same
GPU, also how far off they are.
"""

import argparse
import datetime
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy.compare import Comparison, compare
from benchmarks.accuracy.record import collect
from benchmarks.accuracy.workload_names import ALLOC_CONF, NAMES

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "accuracy.md"
MIB = 2**20
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
    if name in ALLOC_CONF:
        command += ["--alloc-conf", ALLOC_CONF[name]]
    command += ["--", str(HERE / "record.py"), "--out", str(parts.resolve()), "--one", name]
    try:
        done = subprocess.run(
            command, cwd=parts, capture_output=True, text=True, timeout=args.timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return Result(name, f"over {args.timeout} s", None)
    try:
        document = json.loads(done.stdout)
    except ValueError:
        document = None
    if done.returncode == 0:
        return Result(name, None, document)
    lines = done.stderr.strip().splitlines() or ["no message"]
    errors = [line for line in lines if _ERROR.match(line)]
    if document and document.get("reason"):
        errors = [document["reason"]]
    return Result(name, (errors or lines)[-1].strip()[:200], document)


def mib(num_bytes: int) -> str:
    """Bytes as MiB with two decimals."""
    return f"{num_bytes / MIB:,.2f}"


def result_row(result: Result, row: dict[str, Any]) -> str:
    """One line of the page's table."""
    if result.error:
        return f"| `{result.name}` | {result.error.replace('|', '/')} | | | | | | |"
    last = row["steps"][-1]
    peaks = " | ".join(mib(last[peak]) for peak in ("requested", "allocated", "reserved"))
    unattributed, basis, wall = "?", "?", "?"
    if result.document:
        device = result.document["devices"][0]
        share = device["at_peak"]["unattributed"] / max(device["peak_allocated_bytes"], 1)
        unattributed = f"{share:.1%}"
        basis = result.document["basis"]["allocator"]["kind"]
        wall = f"{result.document['wall_s']:.1f}"
    tail = f"{row['num_events']:,} | {unattributed} | {basis} | {wall}"
    return f"| `{result.name}` | ran | {peaks} | {tail} |"


def truth_lines(out: Path, environment: dict[str, Any]) -> list[str]:
    """How this recording compares with those in truth/ by the same torch on the same GPU."""
    lines = []
    for folder in sorted(path.parent for path in (HERE / "truth").glob("*/truth.json")):
        truth = json.loads((folder / "truth.json").read_text())
        there = next((row for row in truth.values() if "error" not in row), {})
        if any(there.get(key) != environment.get(key) for key in ("torch", "gpu")):
            continue
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
    return lines or [
        "No recording by this torch build on this GPU is in `benchmarks/accuracy/truth` yet.",
        "",
    ]


def render(results: list[Result], truth: dict[str, Any], out: Path) -> str:
    """The page."""
    environment = next((row for row in truth.values() if "error" not in row), {})
    num_ran = sum(result.error is None for result in results)
    device = f"{environment.get('gpu')}, compute capability {environment.get('capability')}"
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    introduction = f"""# Accuracy

{num_ran} of {len(results)} workloads run on the phantom of an {device}, with torch
{environment.get("torch")} ({today}). The workloads are those of `benchmarks/accuracy`; this page is
written by `python -m benchmarks.accuracy.phantom`.

Peaks over four steps, in MiB, as `torch.cuda.memory_stats()` gives them in the program. *Events*
are those of PyTorch's allocator, *unowned* is the share of the allocated peak that has no owner,
*basis* that of the allocator's bytes, *s* the whole run in seconds on the machine that wrote this.
"""
    lines = [
        introduction,
        "| workload | result | requested | allocated | reserved | events | unowned | basis | s |",
        "|---|---|---|---|---|---|---|---|---|",
        *(result_row(result, truth[result.name]) for result in results),
        "",
        "## Against real GPUs",
        "",
        *truth_lines(out, environment),
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
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write")
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
        results.append(run_workload(name, parts, args))
        print(f"{name:28} {results[-1].error or 'ran'}", flush=True)
    truth = collect(parts, args.out, {result.name: result.error for result in results})
    args.page.parent.mkdir(exist_ok=True)
    args.page.write_text(render(results, truth, args.out))
    print(f"Wrote {args.page}")


if __name__ == "__main__":
    main()
