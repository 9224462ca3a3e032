"""How much a rank sends in a collective, as operations of the dispatcher have it.

Of a whole of B bytes over N ranks, as NCCL's ring does it: a gather or a scatter (N - 1) / N x B, a
sum that all get twice that, a broadcast B.

Source: NVIDIA, nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

_SPACES = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "_dtensor::")
_SUMS_FOR_ALL = ("allreduce", "all_reduce")
_ONE_WAY = ("broadcast", "send", "isend")
_NOTHING = ("wait_tensor", "barrier", "monitored_barrier", "recv", "irecv")


def is_collective(name: str) -> bool:
    """Whether an operation is between ranks."""
    return name.startswith(_SPACES)


def sent_bytes(torch: ModuleType, name: str, arguments: Iterable[Any], result: Any) -> int:
    """What a rank sends to others in a collective, in bytes.

    Args:
        torch: the module, with torch.distributed.
        name: such as "c10d::allreduce_".
        arguments: of the operation.
        result: what it has returned.
    """
    operands = list(arguments)
    short = name.partition("::")[2]
    if short.startswith(_NOTHING):
        return 0
    whole = max(_size(operand) for operand in (*operands, result))
    if short.startswith(_ONE_WAY):
        return whole
    num_ranks = _num_ranks(torch, operands)
    times = 2 if short.startswith(_SUMS_FOR_ALL) else 1
    return times * whole * (num_ranks - 1) // num_ranks


def _size(value: Any) -> int:
    """Of a tensor, or of all in a list."""
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    if not hasattr(value, "untyped_storage"):
        return 0
    return int(value.numel()) * int(value.element_size())


def _num_ranks(torch: ModuleType, operands: list[Any]) -> int:
    """Of the group among the arguments: an object, or its name."""
    c10d = torch._C._distributed_c10d
    for operand in operands:
        if isinstance(operand, torch.ScriptObject):
            return int(c10d.ProcessGroup.unbox(operand).size())
        if isinstance(operand, str) and operand not in {"sum", "avg", "max", "min", "product"}:
            return int(c10d._resolve_process_group(operand).size())
    return int(torch.distributed.get_world_size())
