"""Several kinds of traffic on one start of a server, one after another.

ullage run --clock virtual -- many_traffics.py TASK RESULT

TASK is a JSON object: "arguments" (the words after `vllm serve`), "config", "gpu", and "traffics",
texts as of --traffic. RESULT gets the engine's figures, and of each traffic what the engine did.
"""

import json
import sys
from pathlib import Path

from ullage.operate.serve.clock import Clock
from ullage.operate.serve.host_time import MEASURED
from ullage.operate.serve.measures import measure
from ullage.operate.serve.outcome import read_outcome
from ullage.operate.serve.traffic import load_traffic
from ullage.operate.serve.vllm.engine_core import Engine, measure_steps
from ullage.operate.serve.vllm.environment import prepare
from ullage.operate.serve.vllm.executor import StepsByTime
from ullage.operate.serve.vllm.replay import replay
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
    for text in task["traffics"]:
        traffic = load_traffic(text)
        engine.core.reset_prefix_cache()
        steps = StepsByTime(Clock(), times, parts.attention, engine.scheduler, MEASURED)
        engine.executor.by_time = steps
        others = {"engine": described, "attention_left_out": (), "real_s": {}, "step_times": {}}
        outcome = read_outcome({**replay(engine, traffic, steps, print), **others}, traffic)
        measures = measure(outcome, None)
        everyone = measures.classes[0]
        rows.append({
            "traffic": text, "num_requests": len(traffic),
            "num_answered": everyone.num_answered,
            "num_preemptions": measures.num_preemptions,
            "num_preempted": measures.num_preempted,
            "usage_peak_frac": outcome.usage_peak_frac,
            "usage_mean_frac": outcome.usage_mean_frac,
            "duration_s": outcome.duration_s, "num_steps": outcome.num_steps,
            "prefix_hit_frac": measures.prefix_hit_frac,
            "ttft_s": everyone.ttft_s._asdict(), "tpot_s": everyone.tpot_s._asdict(),
            "e2e_s": everyone.e2e_s._asdict(),
        })  # fmt: skip
        print("traffic:", rows[-1], file=sys.stderr, flush=True)
        result = {"engine": described, "step_times": times.document, "rows": rows}
        Path(sys.argv[2]).write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
