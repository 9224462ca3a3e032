"""Starts vLLM's engine with random weights, and prints what it counts before the cache.

ullage run --gpu l40s --python VENV/bin/python -- start_vllm.py CONFIG TOKENS REQUESTS LENGTH SHARE
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_NO_USAGE_STATS="1",
    VLLM_USE_FLASHINFER_SAMPLER="0",  # it is built with a whole CUDA toolkit
    HF_HUB_OFFLINE="1",
)
from vllm import LLM
from vllm.v1.worker import gpu_worker

GIB = 2**30


def main() -> None:
    """Ends once the bytes for the cache are known."""
    config, tokens, requests, length, share = sys.argv[1:6]
    measure = gpu_worker.Worker.determine_available_memory

    def say(worker: gpu_worker.Worker) -> int:
        left = measure(worker)
        found = (worker.model_runner.model_memory_usage, worker.peak_activation_memory, left)
        print("weights, peak, cache:", *(f"{size / GIB:.3f}" for size in found), flush=True)
        raise SystemExit(0)

    gpu_worker.Worker.determine_available_memory = say
    with tempfile.TemporaryDirectory() as directory:
        fields = json.loads(Path(config).read_text(encoding="utf-8"))
        Path(directory, "config.json").write_text(json.dumps({**fields, "torch_dtype": "float16"}))
        LLM(
            directory,
            load_format="dummy",
            skip_tokenizer_init=True,
            max_num_batched_tokens=int(tokens),
            max_num_seqs=int(requests),
            max_model_len=int(length),
            gpu_memory_utilization=float(share),
        )


if __name__ == "__main__":
    main()
