"""The program that `ullage serve -- transformers serve MODEL` starts on the phantom, with --clock
virtual.

    entrance.py task.json            # see ullage.operate.serve.task

The outcome is written to the file that the task names.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1")


def main() -> None:
    """Starts the engine, measures its steps, and sends the traffic."""
    from ullage.facts.gpus import find_gpu
    from ullage.operate.serve.clock import Clock
    from ullage.operate.serve.task import read_task
    from ullage.operate.serve.transformers.continuous import Engine, measure_steps
    from ullage.operate.serve.transformers.sender import send_loads

    begin_s = time.monotonic()
    task = read_task(Path(sys.argv[1]))
    notes = {}
    engine = Engine(str(Path(task.config).parent), task.arguments[1:])
    notes["start_s"] = time.monotonic() - begin_s
    described = engine.describe()
    times = measure_steps(engine, Clock())
    notes["measure_s"] = time.monotonic() - begin_s - notes["start_s"]

    def say(text: str) -> None:
        print(f"ullage serve: {text}", file=sys.stderr, flush=True)

    gc.collect()
    gc.freeze()  # what is there stays, and need not be looked at again
    runs = send_loads(engine, task, times, engine.reads(find_gpu(task.gpu)), say)
    notes["replay_s"] = time.monotonic() - begin_s - notes["start_s"] - notes["measure_s"]
    document = {
        "engine": described,
        "step_times": times.document,
        "attention_left_out": [],
        "real_s": notes,
        "runs": runs,
    }
    Path(task.result).write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    main()
