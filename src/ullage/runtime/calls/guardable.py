"""Which models' calls can be guarded."""

from __future__ import annotations

from typing import Any

_REFUSED = ("DataParallel", "FullyShardedDataParallel")
_REPLICATED = "DistributedDataParallel"


def is_replicated(module: Any) -> bool:
    """Whether a module is a DistributedDataParallel."""
    return type(module).__name__ == _REPLICATED


def rank_of() -> int | None:
    """The rank of this process, where there are several; else None."""
    import torch

    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed.get_rank() if distributed.get_world_size() > 1 else None


def why_not(top: Any) -> str | None:
    """Why the calls of a model cannot be guarded; None if they can.

    Args:
        top: the outermost module.
    """
    if rank_of() is not None and not is_replicated(top):
        return "several ranks are supported where DistributedDataParallel is the outermost module"
    for module in top.modules():
        is_compiled = getattr(module, "_compiled_call_impl", None) is not None
        if is_compiled or type(module).__name__ in ("OptimizedModule", "ScriptModule"):
            return "it is compiled, and would be compiled anew for each rung"
        is_within = module is not top and is_replicated(module)
        if is_within or type(module).__name__ in _REFUSED:
            return f"{type(module).__name__} is not supported{' within it' if is_within else ''}"
    return None


def why_not_replica(wrapper: Any, *, is_part: bool) -> str | None:
    """Why the calls of a model under DistributedDataParallel cannot be guarded.

    Args:
        wrapper: the DistributedDataParallel.
        is_part: whether the script calls parts of the model.
    """
    from torch.distributed.tensor import DTensor

    if wrapper.static_graph:
        return "static_graph=True counts what each backward does, and one may be run in two parts"
    if getattr(wrapper, "mixed_precision", None) is not None:
        return "mixed_precision of DistributedDataParallel changes parameters during a call"
    if getattr(wrapper, "_delay_all_reduce_all_params", False) or getattr(
        wrapper, "_delay_all_reduce_params", ()
    ):
        return "delay_all_reduce_named_params is not supported"
    if getattr(wrapper, "_use_python_reducer", False):
        return "the reducer of compiled autograd is not supported"
    if is_part and wrapper.find_unused_parameters:
        return "find_unused_parameters=True is not supported where the script calls its parts"
    if any(isinstance(each, DTensor) for each in wrapper.parameters()):
        return "it has sharded parameters"
    return None
