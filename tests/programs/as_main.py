"""Prints how it was started, as one JSON line; the same under ullage as without."""

import json
import os
import sys
import threading
from pathlib import Path

if __name__ == "__main__":
    main_module = sys.modules["__main__"]
    found = {
        "argv": sys.argv[1:],
        "file": Path(sys.argv[0]).name,
        "first_path": str(Path(sys.path[0]).resolve()),
        "directory": str(Path.cwd()),
        "is_main": Path(main_module.__file__ or "").name == Path(__file__).name,
        "flag": os.environ.get("SOME_FLAG"),
        "num_threads": threading.active_count(),
    }
    print(json.dumps(found))
