"""Closed loops of one server, one after another: what `ullage serve` says of each.

ullage run --clock virtual --values off --world-size 2 --rank 0 -- closed_loops.py TASK RESULT

TASK is a JSON object: "arguments" (the words after `vllm serve`), "config", "gpu", and "loops":
objects with "users", "requests", "prompt" and "output". RESULT gets the engine's figures, and for
each loop the mean time to the first token and for each token after it, in seconds, without each
user's first request.
"""

import json
import os
import sys
from pathlib import Path

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_NO_USAGE_STATS="1",
    VLLM_USE_FLASHINFER_SAMPLER="0",
    HF_HUB_OFFLINE="1",
)

import numpy as np

from ullage.gpus import find_gpu
from ullage.models.architecture import read_model
from ullage.models.config import read_config
from ullage.serve.attention_times import AttentionTimes
from ullage.serve.outcome import read_outcome
from ullage.serve.traffic import load_traffic
from ullage.serve.vllm.engine_core import Engine, measure_steps
from ullage.serve.vllm.executor import Clock, StepsByTime
from ullage.serve.vllm.replay import replay


def main() -> None:
    """Starts the server once."""
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    engine = Engine(task["arguments"])
    described = engine.describe()
    model = read_model(read_config(task["config"]))
    attention = AttentionTimes(find_gpu(task["gpu"]), model, described["tensor_parallel"])
    times = measure_steps(engine, Clock(), attention)
    rows = []
    for loop in task["loops"]:
        text = "closed:" + ",".join(f"{name}={value}" for name, value in loop.items())
        traffic = load_traffic(text)
        engine.core.reset_prefix_cache()
        steps = StepsByTime(Clock(), times, attention, engine.scheduler)
        engine.executor.by_time = steps
        document = replay(engine, traffic, steps, print)
        outcome = read_outcome(
            {
                **document,
                "engine": described,
                "attention_left_out": (),
                "real_s": {},
                "step_times": times.document,
            },
            traffic,
        )
        rows.append(
            {
                **loop,
                "ttft_s": float(np.nanmean(outcome.ttft_s[loop["users"] :])),
                "tpot_s": float(np.nanmean(outcome.tpot_s[loop["users"] :])),
                "usage_peak_frac": outcome.usage_peak_frac,
                "num_preemptions": int(outcome.num_preemptions.sum()),
                "num_answered": int(outcome.is_answered.sum()),
            }
        )
        print("closed loop:", rows[-1], file=sys.stderr, flush=True)
        result = {"engine": described, "step_times": times.document, "rows": rows}
        Path(sys.argv[2]).write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
