"""Prints what of its environment came from outside, as one JSON line; without torch."""

import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    maps = Path("/proc/self/maps").read_text()
    found = {
        "preload": os.environ.get("LD_PRELOAD", ""),
        "loaded": sorted({line.split()[-1] for line in maps.splitlines()}),
        "python_path": os.environ.get("PYTHONPATH", ""),
        "site": getattr(sys, "set_by_sitecustomize", None),
        "site_file": getattr(sys.modules.get("sitecustomize"), "__file__", None),
        "visible": sorted(name for name in sys.modules if name.partition(".")[0] == "torch"),
    }
    print(json.dumps(found))
