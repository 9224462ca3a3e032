"""Starts vLLM's engine with random weights and adapters or a draft; prints what it counts.

ullage run --gpu h100-80gb --python VENV/bin/python -- vllm_extras.py FOLDER ARGUMENTS

FOLDER has the model's config.json; ARGUMENTS is a JSON file of vLLM's own arguments.
"""

import json
import os
import sys
from pathlib import Path

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_NO_USAGE_STATS="1",
    VLLM_USE_FLASHINFER_SAMPLER="0",  # it is built with a whole CUDA toolkit
    HF_HUB_OFFLINE="1",
)
from vllm import LLM
from vllm.model_executor.models import registry


def main() -> None:
    """Prints one line of JSON."""
    registry._run_in_subprocess = lambda look: look()
    folder, arguments = sys.argv[1:3]
    llm = LLM(
        folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        **json.loads(Path(arguments).read_text(encoding="utf-8")),
    )
    core = llm.llm_engine.engine_core.engine_core
    worker = core.model_executor.driver_worker.worker
    cache = llm.llm_engine.vllm_config.cache_config
    figures = {
        "weights": int(worker.model_runner.model_memory_usage),
        "peak": int(worker.peak_activation_memory),
        "cache": int(worker.available_kv_cache_memory_bytes),
        "blocks": int(cache.num_gpu_blocks),
        "tokens": int(cache.kv_cache_size_tokens),
    }
    print("figures:", json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
