"""Closed loops of one server, one after another: what `ullage serve` says of each.

ullage run --clock virtual --world-size 2 --rank 0 -- closed_loops.py TASK RESULT

TASK is a JSON object: "arguments" (the words after `vllm serve`), "config", "gpu", "host" (seconds
of the host, as in HostTime) and "loops": objects with "traffic", a generator's text, and of a
closed loop "users", and "host" where it is another. RESULT gets the engine's figures, and for each
loop means and percentiles in seconds, also of each user's first request and of all later ones; and
the processor's seconds that the replay took here.
"""

import gc
import json
import sys
import time
from pathlib import Path

import numpy as np

from ullage.operate.serve.clock import Clock
from ullage.operate.serve.host_time import HostTime
from ullage.operate.serve.outcome import Outcome, read_outcome
from ullage.operate.serve.task import Task
from ullage.operate.serve.traffic import load_traffic
from ullage.operate.serve.vllm.engine_core import Engine, measure_steps
from ullage.operate.serve.vllm.environment import prepare
from ullage.operate.serve.vllm.replay import replay_loads
from ullage.operate.serve.vllm.step_parts import find_parts


def main() -> None:
    """Starts the server once."""
    prepare()
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    engine = Engine(task["arguments"])
    described = engine.describe()
    parts = find_parts(engine, task["config"], task["gpu"])
    times = measure_steps(engine, Clock(), parts)
    rows = []
    gc.collect()
    gc.freeze()
    for loop in task["loops"]:
        traffic = load_traffic(loop["traffic"])
        order = Task(
            (), "", task["gpu"], traffic, "", host=HostTime(*loop.get("host", task["host"]))
        )
        begin_s = time.process_time()
        (document,) = replay_loads(engine, order, times, parts.attention, print)
        processor_s = time.process_time() - begin_s
        common = {"engine": described, "attention_left_out": (), "real_s": {}}
        outcome = read_outcome(
            {**document, **common, "step_times": times.document}, traffic
        )  # fmt: skip
        rows.append({**loop, **summary(outcome, loop.get("users", 0)), "processor_s": processor_s})
        print("closed loop:", rows[-1], file=sys.stderr, flush=True)
        result = {"engine": described, "step_times": times.document, "rows": rows}
        Path(sys.argv[2]).write_text(json.dumps(result, indent=1), encoding="utf-8")


def summary(outcome: Outcome, users: int) -> dict[str, float]:
    """The figures of a loop; of a closed one also of the first and of later requests."""
    figures = {
        "usage_peak_frac": outcome.usage_peak_frac,
        "num_preemptions": int(outcome.num_preemptions.sum()),
        "num_answered": int(outcome.is_answered.sum()),
        "num_steps": outcome.num_steps,
        "duration_s": outcome.duration_s,
    }
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        column = getattr(outcome, name)
        figures |= {name: float(np.nanmean(column))}
        for percent in (50, 90):
            figures[f"{name[:-2]}_p{percent}_s"] = float(np.nanpercentile(column, percent))
        if users:
            figures[f"first_{name}"] = float(np.nanmean(column[:users]))
            figures[f"later_{name}"] = float(np.nanmean(column[users:]))
    return figures


if __name__ == "__main__":
    main()
