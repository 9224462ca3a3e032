"""What transformers' own caches hold, for the models of models.py: run by its interpreter.

    VENV/bin/python benchmarks/serving/library.py caches.json < models.json

Reads {"name": {config}} and writes, for each, its parameters on the meta device, the bytes of
DynamicCache right after a prompt, those of DynamicCache and StaticCache after one more token, and
the sectors of continuous batching. All on the CPU, in bfloat16, without Triton's kernels.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["HF_HUB_OFFLINE"] = "1"
sys.modules["fla"] = None  # type: ignore[assignment]  # its kernels need a GPU
BATCH, PROMPT = 2, 1200
AVAILABLE = 20_000_000_000
BATCHED = 2048


def tensors(found: Any) -> list[Any]:
    """Every tensor of floats in a cache's layers."""
    import torch

    if isinstance(found, torch.Tensor):
        return [found] if found.is_floating_point() and found.dim() > 1 else []
    if isinstance(found, dict):
        return [each for value in found.values() for each in tensors(value)]
    return []


def held(cache: Any) -> int:
    """Bytes of the storages behind them, each once."""
    storages = {}
    parts = [cache.self_attention_cache, cache.cross_attention_cache] if hasattr(
        cache, "self_attention_cache"
    ) else [cache]  # fmt: skip
    for layer in (layer for part in parts for layer in part.layers):
        for each in tensors(vars(layer)):
            storages[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
    return sum(storages.values())


def generated(model: Any, *, is_static: bool, tokens: int = 1) -> int:
    """The cache after a prompt and so many more tokens."""
    import torch
    from transformers import StaticCache

    ids = torch.zeros((BATCH, PROMPT), dtype=torch.long)
    field = "cache_params" if model.config.model_type.startswith("mamba") else "past_key_values"
    cache = None
    if is_static:
        cache = StaticCache(config=model.config, max_cache_len=PROMPT + 1)
    with torch.no_grad():
        for read in (ids, *[ids[:, :1]] * tokens):
            cache = getattr(model(input_ids=read, use_cache=True, **{field: cache}), field)
    return held(cache)


def sectors(config: Any, *, is_flash: bool) -> dict[str, int]:
    """Continuous batching's sizing, with the bytes that are free given."""
    import torch
    from transformers import ContinuousBatchingConfig
    from transformers.generation.continuous_batching import cache

    config._attn_implementation = "flash_attention_2" if is_flash else "sdpa"
    has_window = cache.SLIDING_ATTENTION in cache.group_layers_by_attn_type(config)
    asked = ContinuousBatchingConfig(
        max_batch_tokens=BATCHED,
        max_blocks_per_request=32 if is_flash and not has_window else 0,
        use_async_batching=is_flash,
    )
    helper = mock.Mock(tp_size=1)
    with mock.patch.object(
        cache.PagedAttentionMemoryHandler, "get_available_memory", lambda _: AVAILABLE
    ):
        made = cache.PagedAttentionCache(
            config, asked, "meta", helper, torch.bfloat16, model_supports_logits_to_keep=True
        )
    return {"sectors": made.num_sectors, "sector_bytes": made.bytes_per_sector}


def attempt(action: Any, *arguments: Any, **named: Any) -> Any:
    """What an action gives, or the error that it raises."""
    try:
        return action(*arguments, **named)
    except Exception as error:  # whatever the library raises is its answer
        return {"error": f"{type(error).__name__}: {error}"[:200]}


def main() -> None:
    """One model after another."""
    import torch
    import transformers

    answers = {}
    for name, fields in json.load(sys.stdin).items():
        config = transformers.AutoConfig.for_model(**fields)
        made = getattr(transformers, fields["architectures"][0])
        with torch.device("meta"):
            parameters = sum(each.numel() for each in made(config).parameters())
        model = made._from_config(config, dtype=torch.bfloat16).eval()
        answers[name] = {
            "config": fields,
            "parameters": parameters,
            "prompt": attempt(generated, model, is_static=False, tokens=0),
            "dynamic": attempt(generated, model, is_static=False),
            "static": attempt(generated, model, is_static=True),
            "flash": attempt(sectors, config, is_flash=True),
            "sdpa": attempt(sectors, config, is_flash=False),
        }
        print(name, answers[name], file=sys.stderr)
    found = {
        "transformers": transformers.__version__, "batch": BATCH, "prompt": PROMPT,
        "available": AVAILABLE, "batched": BATCHED, "models": answers,
    }  # fmt: skip
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
