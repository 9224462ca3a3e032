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
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

# The folder may stand alone on a machine with a GPU: its files import each other by bare names.
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import nvml
from compare import PEAKS, canonical, highest
from numpy.typing import NDArray
from timing import timed
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


def record_one(name: str, out: Path, *, waits: bool, times: bool) -> None:
    """Run one workload in this process; writes out/NAME.json and out/NAME.npz, and with `times`
    also out/NAME.times.json. One that waits begins on the GPU when a line comes on its stdin.
    """
    import torch
    from workloads import WORKLOADS

    if waits:
        sys.stdin.readline()
    used = {"before_context": nvml.used_bytes()}
    torch.manual_seed(0)
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    used["after_context"] = nvml.used_bytes()
    torch.cuda.memory._record_memory_history(stacks="python", context=None)
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
    if times:
        torch.cuda.memory._record_memory_history(enabled=None)
        (out / f"{name}.times.json").write_text(json.dumps(timed(step)))


class Child:
    """A process that records one workload: it imports what it needs, and waits for its turn."""

    def __init__(self, name: str, parts: Path, *, times: bool) -> None:
        self.name = name
        conf = {"PYTORCH_CUDA_ALLOC_CONF": ALLOC_CONF[name]} if name in ALLOC_CONF else {}
        command = [sys.executable, __file__, "--out", str(parts), "--one", name, "--wait"]
        self._errors = parts / f"{name}.stderr.txt"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                command + ["--times"] * times, env=os.environ | conf, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip

    def run(self, timeout_s: int) -> str | None:
        """Let it begin, and wait for its end; what went wrong, None if nothing did."""
        try:
            self._process.communicate("go\n", timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.end()
            return f"over {timeout_s} s"
        lines = self._errors.read_text().strip().splitlines() or ["?"]
        return None if self._process.returncode == 0 else lines[-1]

    def end(self) -> None:
        """Stop it, whether its turn came or not."""
        self._process.kill()
        self._process.wait()


def children(names: list[str], parts: Path, *, pool: int, times: bool) -> Iterator[Child]:
    """One child after the other, of which `pool` import at once while one has the GPU."""
    ahead = deque(Child(name, parts, times=times) for name in names[:pool])
    for name in [*names[pool:], *[None] * len(ahead)]:
        child = ahead.popleft()
        try:
            yield child
        except GeneratorExit:
            for each in ahead:
                each.end()
            child.end()
            raise
        if name is not None:
            ahead.append(Child(name, parts, times=times))


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
    times = {name: parts / f"{name}.times.json" for name in recorded}
    measured = {name: json.loads(path.read_text()) for name, path in times.items() if path.exists()}
    if measured:
        (out / "times.json").write_text(json.dumps(measured, indent=1))
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
    parser.add_argument("--pool", type=int, default=1, help="children that import at once")
    parser.add_argument("--times", action="store_true", help="also measure steps and kernels")
    parser.add_argument("--wait", action="store_true", help="with --one: wait for a line")
    args = parser.parse_args()
    if unknown := set(args.names) - set(NAMES):
        parser.error(
            f"no workload is called {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    if args.one:
        record_one(args.one, args.out, waits=args.wait, times=args.times)
        return
    parts, end = args.out / "parts", time.monotonic() + args.stop_after
    parts.mkdir(exist_ok=True)
    known = {name: part(name, parts) for name in args.names or NAMES}
    to_do = [name for name, row in known.items() if not args.missing or not row or "error" in row]
    with closing(children(to_do, parts, pool=args.pool, times=args.times)) as pool:
        for child in pool:
            if time.monotonic() > end:
                child.end()
                break
            error = child.run(args.timeout)
            if error and part(child.name, parts) is None:
                note_error(child.name, parts, error)
            print(line_of(child.name, part(child.name, parts) or {"error": "?"}), flush=True)
    left = [name for name in args.names or NAMES if part(name, parts) is None]
    collect(parts, args.out)
    if left:
        print(f"{len(left)} left; go on with --missing")


if __name__ == "__main__":
    main()
