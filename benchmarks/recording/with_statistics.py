"""Runs a program, then prints the peaks that torch itself counted, as one line of JSON.

    python with_statistics.py PROGRAM ARGUMENTS

`benchmarks.recording.stack_peaks` has `ullage record` run this.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

MARK = "torch counted "
NAMES = ("requested", "allocated", "reserved")


def main() -> None:
    """Runs the program as if it had been called itself."""
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        import torch

        counted = []
        is_used = torch.cuda.is_initialized()
        for index in range(torch.cuda.device_count() if is_used else 0):
            statistics = torch.cuda.memory_stats(index)
            counted.append({name: statistics[f"{name}_bytes.all.peak"] for name in NAMES})
        print(f"\n{MARK}{json.dumps(counted)}", flush=True)


if __name__ == "__main__":
    main()
