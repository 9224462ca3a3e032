"""The program that `ullage serve` starts on the phantom, with --clock virtual.

    entrance.py task.json            # see ullage.operate.serve.task

Its own output is that of vLLM; the outcome is written to the file that the task names.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

from ullage.operate.serve.vllm.environment import prepare


def _complete(path: Path) -> None:
    """Names the model's class in its configuration, where it stands in none."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    fields = json.loads(path.read_text(encoding="utf-8"))
    kind = fields.get("model_type")
    if "architectures" not in fields and kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        fields["architectures"] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]]
        path.write_text(json.dumps(fields), encoding="utf-8")


def _keep_compiled(directory: str | None) -> None:
    """Has vLLM keep what it compiles, and find it again, in a directory that outlives the run."""
    if directory is not None:
        os.environ["VLLM_CACHE_ROOT"] = directory
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(directory, "inductor"))


def main() -> None:
    """Starts the engine, measures its steps, and sends the traffic at each load."""
    from ullage.operate.serve.clock import Clock
    from ullage.operate.serve.task import read_task
    from ullage.operate.serve.vllm.engine_core import Engine, measure_steps
    from ullage.operate.serve.vllm.replay import replay_loads
    from ullage.operate.serve.vllm.step_parts import find_parts

    prepare()
    begin_s = time.monotonic()
    task = read_task(Path(sys.argv[1]))
    _complete(Path(task.config))
    _keep_compiled(task.compile_cache)
    notes = {}
    engine = Engine(task.arguments)
    notes["start_s"] = time.monotonic() - begin_s
    described = engine.describe()
    if not task.loads:
        Path(task.result).write_text(json.dumps({"engine": described}), encoding="utf-8")
        return
    parts = find_parts(engine, task.config, task.gpu)
    times = measure_steps(engine, Clock(), parts)
    notes["measure_s"] = time.monotonic() - begin_s - notes["start_s"]

    def say(text: str) -> None:
        print(f"ullage serve: {text}", file=sys.stderr, flush=True)

    gc.collect()
    gc.freeze()  # what is there stays, and need not be looked at again
    runs = replay_loads(engine, task, times, parts.attention, say)
    notes["replay_s"] = time.monotonic() - begin_s - notes["start_s"] - notes["measure_s"]
    document = {
        "engine": described,
        "step_times": times.document,
        "attention_left_out": parts.attention.left_out,
        "experts_chosen": parts.experts.num_chosen,
        "real_s": notes,
        "runs": runs,
    }
    Path(task.result).write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    main()
