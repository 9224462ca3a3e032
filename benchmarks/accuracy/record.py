"""Record the true GPU memory of each workload.

    python record.py --out DIR [NAME ...]

One child process a workload, recording from its first allocation. Writes DIR/truth.json
(environment; peaks and the device's use per step) and DIR/events.npz (per workload: action and size
of every allocator event, in order). compare.py holds two such folders together. These files need
torch and numpy (transformers and timm for some) and nothing of ullage, so that the folder can be
copied to a machine with a GPU.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# The folder may stand alone on a machine with a GPU: its files import each other by bare names.
sys.path.insert(0, str(Path(__file__).parent))

from workload_names import ALLOC_CONF, NAMES

STEPS = 4
# An event's action is stored as its place in this list: only ever append.
ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
)


def cudnn_version() -> int | None:
    """None where torch finds no usable cuDNN."""
    import torch

    try:
        return torch.backends.cudnn.version()
    except RuntimeError:
        return None


def record_one(name: str, out: Path) -> None:
    """Run one workload in this process; writes out/NAME.json and out/NAME.npz."""
    import numpy as np
    import torch
    from workloads import WORKLOADS

    torch.manual_seed(0)
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    torch.cuda.memory._record_memory_history(stacks="python", context=None)
    step, rows = WORKLOADS[name](), []
    for index in range(STEPS):
        step()
        torch.cuda.synchronize()
        stats, (now_free, _) = torch.cuda.memory_stats(), torch.cuda.mem_get_info()
        peaks = {k: stats[f"{k}_bytes.all.peak"] for k in ("requested", "allocated", "reserved")}
        reserved_now = stats["reserved_bytes.all.current"]
        rows.append(
            {"index": index, **peaks, "device_used": total - now_free, "reserved_now": reserved_now}
        )
    trace = max(torch.cuda.memory._snapshot()["device_traces"], key=len)
    rows_of_trace = [
        (ACTIONS.index(e["action"]), e.get("size", 0)) for e in trace if e["action"] in ACTIONS
    ]
    events = np.array(rows_of_trace, dtype=np.int64)
    properties = torch.cuda.get_device_properties(0)
    document = {
        "name": name,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": cudnn_version(),
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "total_bytes": total,
        "multiprocessors": properties.multi_processor_count,
        "context_bytes": total - free,
        "steps": rows,
        "num_events": len(events),
    }
    np.savez_compressed(out / f"{name}.npz", events=events)
    (out / f"{name}.json").write_text(json.dumps(document))


def run_child(name: str, parts: Path, timeout_s: int) -> str | None:
    """Record one workload in a child process; what went wrong, None if nothing did."""
    env = os.environ | ({"PYTORCH_CUDA_ALLOC_CONF": ALLOC_CONF[name]} if name in ALLOC_CONF else {})
    command = [sys.executable, __file__, "--out", str(parts), "--one", name]
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return f"over {timeout_s} s"
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1]


def collect(parts: Path, out: Path, errors: dict[str, str | None]) -> dict[str, Any]:
    """Join the parts into out/truth.json and out/events.npz; the content of the former."""
    import numpy as np

    truth: dict[str, Any] = {}
    arrays = {}
    for name, error in errors.items():
        if error:
            truth[name] = {"error": error}
            continue
        truth[name] = json.loads((parts / f"{name}.json").read_text())
        arrays[name] = np.load(parts / f"{name}.npz")["events"]
    (out / "truth.json").write_text(json.dumps(truth, indent=1))
    np.savez_compressed(out / "events.npz", **arrays)
    return truth


def line_of(name: str, row: dict[str, Any]) -> str:
    """One workload in words."""
    if "error" in row:
        return f"{name:28} FAILED {row['error']}"
    last = row["steps"][-1]
    peaks = f"allocated {last['allocated']:>14,} reserved {last['reserved']:>14,}"
    return f"{name:28} {peaks} events {row['num_events']:>7,}"


def main() -> None:
    """Record all workloads, or those named; one line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--one", metavar="NAME", choices=NAMES, help="in this process")
    parser.add_argument("--timeout", type=int, default=120, help="seconds a workload")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    if unknown := set(args.names) - set(NAMES):
        parser.error(
            f"no workload is called {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    if args.one:
        record_one(args.one, args.out)
        return
    parts = args.out / "parts"
    parts.mkdir(exist_ok=True)
    errors: dict[str, str | None] = {}
    for name in args.names or NAMES:
        errors[name] = run_child(name, parts, args.timeout)
        row = (
            {"error": errors[name]}
            if errors[name]
            else json.loads((parts / f"{name}.json").read_text())
        )
        print(line_of(name, row), flush=True)
    collect(parts, args.out, errors)


if __name__ == "__main__":
    main()
