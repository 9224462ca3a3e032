"""Record the true GPU memory of each workload.

    python record.py --out DIR [NAME ...]

One child process a workload, recording from its first allocation. Writes DIR/truth.json
(environment; per step the four peaks and the device's use; what NVML says is used before and after
the context, and after the run; a digest of the events) and DIR/events.npz (per workload: action and
size of every allocator event, in order). compare.py holds two such folders together. These files
need torch and numpy (transformers and timm for some) and nothing of ullage, so that the folder can
be copied to a machine with a GPU.
"""

import argparse
import datetime
import hashlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The folder may stand alone on a machine with a GPU: its files import each other by bare names.
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import nvml
from compare import PEAKS, canonical, highest
from numpy.typing import NDArray
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


def environment() -> dict[str, Any]:
    """Where and when this is recorded."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": cudnn_version(),
        "driver": nvml.driver_version(),
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "total_bytes": torch.cuda.mem_get_info()[1],
        "multiprocessors": properties.multi_processor_count,
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
    }


def measured_step(step: Callable[[], None]) -> dict[str, int]:
    """Run one step: the peaks within it, and what is held after it."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    stats, (free, total) = torch.cuda.memory_stats(), torch.cuda.mem_get_info()
    peaks = {peak: stats[f"{peak}_bytes.all.peak"] for peak in PEAKS}
    reserved_now = stats["reserved_bytes.all.current"]
    return {**peaks, "reserved_now": reserved_now, "device_used": total - free}


def recorded_events() -> NDArray[np.int64]:
    """(action, size) of every event of the allocator so far."""
    import torch

    trace = max(torch.cuda.memory._snapshot()["device_traces"], key=len)
    rows = [(ACTIONS.index(e["action"]), e.get("size", 0)) for e in trace if e["action"] in ACTIONS]
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


def digest(events: NDArray[np.int64]) -> str:
    """SHA-256 of the events as compare.py sees them: two recordings that agree have the same."""
    return hashlib.sha256(canonical(events).astype("<i8").tobytes()).hexdigest()


def record_one(name: str, out: Path) -> None:
    """Run one workload in this process; writes out/NAME.json and out/NAME.npz."""
    import torch

    used = {"before_context": nvml.used_bytes()}
    torch.manual_seed(0)
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    used["after_context"] = nvml.used_bytes()
    torch.cuda.memory._record_memory_history(stacks="python", context=None)
    from workloads import WORKLOADS

    step = WORKLOADS[name]()
    rows = [measured_step(step) for _ in range(STEPS)]
    used["after_run"] = nvml.used_bytes()
    events = recorded_events()
    document = {
        "name": name,
        **environment(),
        "context_bytes": total - free,
        "nvml_used_bytes": used,
        "steps": rows,
        "num_events": len(events),
        "events_sha256": digest(events),
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


def part(name: str, parts: Path) -> dict[str, Any] | None:
    """What was recorded of one workload, or {"error": ...}; None if it was not tried yet."""
    path = parts / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def note_error(name: str, parts: Path, error: str) -> None:
    """Note that a workload could not be recorded."""
    (parts / f"{name}.npz").unlink(missing_ok=True)
    (parts / f"{name}.json").write_text(json.dumps({"error": error}))


def collect(parts: Path, out: Path) -> dict[str, Any]:
    """Join all parts into out/truth.json and out/events.npz; the content of the former."""
    rows = {name: part(name, parts) for name in NAMES}
    truth = {name: row for name, row in rows.items() if row}
    recorded = [name for name, row in truth.items() if "error" not in row]
    places = {(truth[name]["torch"], truth[name]["gpu"]) for name in recorded}
    if len(places) > 1:
        raise SystemExit(f"{parts} holds recordings of {sorted(places)}; use one folder for each")
    (out / "truth.json").write_text(json.dumps(truth, indent=1))
    arrays = {name: np.load(parts / f"{name}.npz")["events"] for name in recorded}
    np.savez_compressed(out / "events.npz", **arrays)
    return truth


def line_of(name: str, row: dict[str, Any]) -> str:
    """One workload in words."""
    if "error" in row:
        return f"{name:28} FAILED {row['error']}"
    peak = highest(row)
    peaks = f"allocated {peak['allocated']:>14,} reserved {peak['reserved']:>14,}"
    return f"{name:28} {peaks} events {row['num_events']:>7,}"


def main() -> None:
    """Record all workloads, or those named; one line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--one", metavar="NAME", choices=NAMES, help="in this process")
    parser.add_argument("--timeout", type=int, default=120, help="seconds a workload")
    parser.add_argument("--missing", action="store_true", help="only what DIR does not hold yet")
    parser.add_argument(
        "--stop-after", type=float, default=math.inf, metavar="S", help="start none after S seconds"
    )
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
    parts, end = args.out / "parts", time.monotonic() + args.stop_after
    parts.mkdir(exist_ok=True)
    for name in args.names or NAMES:
        known = part(name, parts)
        if (args.missing and known and "error" not in known) or time.monotonic() > end:
            continue
        if error := run_child(name, parts, args.timeout):
            note_error(name, parts, error)
        print(line_of(name, part(name, parts) or {"error": "?"}), flush=True)
    left = [name for name in args.names or NAMES if part(name, parts) is None]
    collect(parts, args.out)
    if left:
        print(f"{len(left)} left; go on with --missing")


if __name__ == "__main__":
    main()
