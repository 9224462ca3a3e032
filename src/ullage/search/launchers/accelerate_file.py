"""A sharding as a configuration of Accelerate: what `accelerate launch --config_file` reads.

    config = accelerate_config({}, Sharding(Engine.FSDP2, 3), 8, ["LlamaDecoderLayer"])
    to_yaml(config)

Source: Accelerate 1.15, commands/config/config_args.py and utils/launch.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ullage.ground.errors import SpecError
from ullage.search.launchers.shardings import Engine, OnHost, Sharding

_TYPES = {Engine.DDP: "MULTI_GPU", Engine.FSDP2: "FSDP", Engine.DEEPSPEED: "DEEPSPEED"}
_SECTIONS = ("fsdp_config", "deepspeed_config")
# What FSDP2 has no more of FSDP1; Accelerate warns of them, or refuses them.
_FSDP1 = (
    "fsdp_sharding_strategy",
    "fsdp_backward_prefetch",
    "fsdp_use_orig_params",
    "fsdp_sync_module_states",
    "fsdp_forward_prefetch",
)
_DEFAULTS = {
    "compute_environment": "LOCAL_MACHINE",
    "machine_rank": 0,
    "main_training_function": "main",
    "mixed_precision": "no",
    "num_machines": 1,
    "rdzv_backend": "static",
    "same_network": True,
}
# Text that YAML reads as text where it has no quotes; of words it reads some as something else.
_PLAIN = re.compile(r"[A-Za-z_][\w./-]*")
_WORDS = {"no", "yes", "on", "off", "true", "false", "null", "y", "n", "none"}


def accelerate_config(
    own: Mapping[str, Any], sharding: Sharding, num_ranks: int, kinds: Sequence[str]
) -> dict[str, Any]:
    """A configuration with this sharding in place of its own; all else of it stays.

    Args:
        own: the program's own configuration; empty where it has none.
        sharding: how the ranks share the training.
        num_ranks: the processes of all machines.
        kinds: the classes of the blocks; FSDP2 gathers, and checkpoints, one block at a time.

    Raises:
        SpecError: it cannot be said in such a file.
    """
    if sharding.is_checkpointed and sharding.engine is not Engine.FSDP2:
        raise SpecError(f"{sharding.name} cannot be said in a configuration of Accelerate")
    kind = own.get("distributed_type", "NO")
    if kind not in {"NO", *_TYPES.values()}:
        raise SpecError(f"the configuration of Accelerate is for {kind}, and not for these GPUs")
    if own.get("parallelism_config"):
        raise SpecError(
            "the configuration of Accelerate has a parallelism_config, which says how the ranks "
            "share the training; that is what is looked for: leave it out"
        )
    own_keys = {key: value for key, value in own.items() if key not in _SECTIONS}
    config = {
        **_DEFAULTS,
        **own_keys,
        "distributed_type": _TYPES[sharding.engine],
        "num_processes": num_ranks,
        "use_cpu": False,
    }
    if sharding.engine is Engine.FSDP2:
        config["fsdp_config"] = _fsdp(own.get("fsdp_config") or {}, sharding, kinds)
        if sharding.num_context_ranks > 1:
            config["parallelism_config"] = {
                "parallelism_config_cp_size": sharding.num_context_ranks
            }
    elif sharding.engine is Engine.DEEPSPEED:
        config["deepspeed_config"] = _deepspeed(own.get("deepspeed_config") or {}, sharding)
    return config


def _fsdp(own: Mapping[str, Any], sharding: Sharding, kinds: Sequence[str]) -> dict[str, Any]:
    if not kinds:
        raise SpecError("FSDP2 needs the class of the program's blocks, and none was found")
    return {
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        **{key: value for key, value in own.items() if key not in _FSDP1},
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": ",".join(kinds),
        "fsdp_reshard_after_forward": sharding.zero_stage == 3,
        "fsdp_offload_params": sharding.on_host is OnHost.ALL,
        "fsdp_activation_checkpointing": sharding.is_checkpointed,
    }


def _deepspeed(own: Mapping[str, Any], sharding: Sharding) -> dict[str, Any]:
    if "deepspeed_config_file" in own:
        raise SpecError(
            "the configuration of Accelerate names a file of DeepSpeed's, which it takes all from; "
            "leave deepspeed_config_file out"
        )
    on_host = {
        "offload_optimizer_device": sharding.on_host is not OnHost.NOTHING,
        "offload_param_device": sharding.on_host is OnHost.ALL,
    }
    # Where the program's own file has it elsewhere than in the host's memory, such as on NVMe, it
    # stays there.
    devices = {
        key: (own.get(key, "none").replace("none", "cpu") if is_there else "none")
        for key, is_there in on_host.items()
    }
    return {"zero3_init_flag": False, **own, "zero_stage": sharding.zero_stage, **devices}


def to_yaml(config: Mapping[str, Any]) -> str:
    """A configuration as YAML: sections of scalars and lists of them."""
    return "\n".join(_lines(config, "")) + "\n"


def _lines(config: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield f"{indent}{_scalar(key)}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{_scalar(key)}: {_scalar(value)}"


def _scalar(value: Any) -> str:  # noqa: ANN401 - what YAML gave
    """A value as YAML; JSON is YAML too."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)
