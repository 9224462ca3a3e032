"""What ullage says of a start of vLLM's CPU build, from the configuration alone; and of built-in
models, which that build is asked about as on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ullage.facts.families.architecture import MODEL_TYPES, read_model
from ullage.facts.families.builtin import find_model
from ullage.facts.families.config import Config
from ullage.facts.families.layers import Attention, Cross, Encoder, Latent
from ullage.facts.gpus import find_gpu
from ullage.ground.errors import SpecError
from ullage.players.eager.serving.engines.vllm import REFUSED, Pool, Settings, lay_out
from ullage.players.eager.serving.serving import estimate_serving
from ullage.players.eager.serving.serving_plan import ServingPlan

__all__ = ["answer_of", "key_of", "planned_answer_of", "plans_of", "settings_of"]

GPU: Final = "h100-80gb"
CONTEXT: Final = 8192
KV_BYTES: Final = 50_000_000_000
BATCHED_TOKENS: Final = 4096
"""max_num_batched_tokens of an offline engine on the CPU where the user says nothing."""


def settings_of(config: Config, run: Mapping[str, Any]) -> Settings:
    """How the CPU build differs from a GPU's, and what the run asks for.

    Blocks are of 128 tokens and multiples of 32, one batch is in flight, states are in 32 bits
    (where the CPU has AVX-512 BF16). Latent attention has blocks of 16, and neither a prefix cache
    nor chunked prompts; an encoder-decoder has no prefix cache. A model without attention keeps the
    usual 16.
    Source: vLLM 0.32, platforms/cpu.py, config/scheduler.py.
    """
    layers = read_model(config).layers
    is_latent = any(isinstance(layer, Latent) for layer in layers)
    has_cross = any(isinstance(layer, Cross) for layer in layers)
    is_attended = any(isinstance(layer, Attention | Latent) for layer in layers)
    batched = run.get("max_num_batched_tokens", BATCHED_TOKENS)
    if is_latent:
        batched = max(run["max_model_len"], 2048)
    return Settings(
        max_model_len=run["max_model_len"],
        max_batched_tokens=batched,
        kv=run.get("kv_cache_dtype", "bf16"),
        block_size=16 if is_latent or not is_attended else run.get("block_size", 128),
        has_prefix_caching=run["enable_prefix_caching"] and not is_latent and not has_cross,
        batches_in_flight=1,
        kernel_block=32,
        is_state_fp32=True,
    )


def answer_of(config: Config, run: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that the engine would print, named as in ground/programs/vllm_layout.py."""
    pool: Pool = lay_out(read_model(config).layers, settings_of(config, run))
    kv_bytes = run["kv_cache_memory_bytes"]
    return {
        "num_blocks": pool.num_blocks(kv_bytes),
        "tokens": pool.tokens(kv_bytes),
        "concurrency": pool.concurrency(kv_bytes),
        "block_size": pool.block_size,
    }


def planned_answer_of(config: Config, plan: ServingPlan) -> dict[str, Any]:
    """The same figures of a plan for a GPU, all bytes for the cache being said."""
    found = estimate_serving(config, plan)
    return {
        "num_blocks": found.num_blocks[1],
        "tokens": found.tokens[1],
        "concurrency": found.concurrency[1],
        "block_size": found.block_size,
    }


def plans_of(name: str) -> list[ServingPlan]:
    """How a built-in model is asked about: on one H100, and on two for its longest context; none
    where it keeps no cache, or vLLM has no such model.
    """
    config = find_model(name).config
    if config.fields.get("model_type") not in MODEL_TYPES or config.model_type in REFUSED:
        return []
    model = read_model(config)
    longest = model.context or CONTEXT
    if all(isinstance(layer, Encoder) for layer in model.layers):
        return []
    plans = [ServingPlan(gpu=find_gpu(GPU), context=min(CONTEXT, longest), kv_bytes=KV_BYTES)]
    try:
        model.check_tensor_parallel(2)
    except SpecError:
        return plans
    return [*plans, replace(plans[0], context=longest, tensor_parallel=2)]


def key_of(name: str, plan: ServingPlan) -> str:
    """Under which built_in.json has the answer."""
    return f"{name} {plan.tensor_parallel} {plan.context}"
