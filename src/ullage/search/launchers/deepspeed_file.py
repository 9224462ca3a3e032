"""A sharding as a configuration of DeepSpeed: the program's own JSON with another ZeRO.

    deepspeed_config(own, Sharding(Engine.DEEPSPEED, 3))

Everything else of it, such as the optimizer, the precision and the batch sizes, stays unchanged:
numbers or "auto".

Source: DeepSpeed 0.19, deepspeed/runtime/zero/config.py and offload_config.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ullage.ground.errors import SpecError
from ullage.ground.parsing import read_bounded
from ullage.search.launchers.shardings import Engine, OnHost, Sharding

# One of them is in each file that `deepspeed.initialize` takes.
_TELLING = {"train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization"}
_OPTIMIZER, _PARAMETERS = "offload_optimizer", "offload_param"


def read_deepspeed_config(word: str) -> dict[str, Any] | None:
    """Reads the configuration of DeepSpeed that a word of a command line names, or None."""
    path = Path(word)
    if path.suffix != ".json" or not path.is_file():
        return None
    try:
        document = json.loads(read_bounded(path))
    except (OSError, ValueError) as error:
        raise SpecError(f"{word!r} is not JSON that can be read: {error}") from None
    return document if isinstance(document, dict) and document.keys() & _TELLING else None


def deepspeed_config(own: Mapping[str, Any], sharding: Sharding) -> dict[str, Any]:
    """The configuration with this sharding in place of its own.

    Checkpointing cannot be said in it: DeepSpeed's section of that name sets up only what a script
    asks of `deepspeed.checkpointing` itself. A plan does it.

    Raises:
        SpecError: it cannot be said there.
    """
    if sharding.engine is not Engine.DEEPSPEED or sharding.is_checkpointed:
        raise SpecError(f"{sharding.name} cannot be said in a configuration of DeepSpeed")
    zero = dict(own.get("zero_optimization") or {})
    offloads = {name: zero.pop(name, None) or {} for name in (_OPTIMIZER, _PARAMETERS)}
    zero.pop("cpu_offload", None)  # as versions before 0.4 had it
    zero["stage"] = sharding.zero_stage
    if sharding.on_host is not OnHost.NOTHING:
        zero[_OPTIMIZER] = _offload(offloads[_OPTIMIZER])
    if sharding.on_host is OnHost.ALL:
        zero[_PARAMETERS] = _offload(offloads[_PARAMETERS])
    config = {**own, "zero_optimization": zero}
    if sharding.on_host is not OnHost.NOTHING:
        # Else an optimizer that the script makes itself is refused.
        config.setdefault("zero_force_ds_cpu_optimizer", False)
    return config


def _offload(own: Mapping[str, Any]) -> dict[str, Any]:
    """Where it goes: as in the program's own file, such as to NVMe, or to the host's memory."""
    is_asked = own.get("device", "none") != "none"
    return dict(own) if is_asked else {"device": "cpu", "pin_memory": True}
