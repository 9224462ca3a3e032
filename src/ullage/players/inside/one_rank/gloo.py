"""Gloo without peers: collectives of CPU tensors, as if every rank held the same values.

Gloo connects every rank with every other, so the real one cannot be had alone. PyTorch's own
FakeProcessGroup takes its place. From torch 2.15 on it can be told that all ranks are alike; what
it leaves undone before that is done here, on the way through torch.distributed.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d


def install() -> None:
    """Puts the stand-in in the place of ProcessGroupGloo."""
    real = getattr(c10d, "ProcessGroupGloo", None)
    if real is None:
        return

    class StandInType(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real | c10d.FakeProcessGroup)

    class ProcessGroupGloo(metaclass=StandInType):
        """Made as Gloo's is; what comes out is the stand-in."""

        Options = getattr(real, "Options", None)
        create_device = getattr(real, "create_device", None)
        create_default_device = getattr(real, "create_default_device", None)

        def __new__(
            cls, _store: object, rank: int, size: int, *_arguments: object, **_named: object
        ) -> Any:
            return _stand_in(rank, size)

    for module in (c10d, torch.distributed, torch.distributed.distributed_c10d):
        module.ProcessGroupGloo = ProcessGroupGloo
    c10d.ProcessGroup.monitored_barrier = _nothing_to_do
    for name in ("_set_sequence_number_for_group", "_set_default_timeout"):
        setattr(c10d.FakeProcessGroup, name, _nothing_to_do)
    if not hasattr(c10d.FakeProcessGroup, "options"):  # torch 2.8 writes the group's name there
        c10d.FakeProcessGroup.options = types.SimpleNamespace()
    if not _knows_uniform_ranks():
        for name, finish in _FINISHERS.items():
            original = getattr(c10d.ProcessGroup, name)
            setattr(c10d.ProcessGroup, name, _then(original, finish))


def _knows_uniform_ranks() -> bool:
    options = getattr(c10d.FakeProcessGroup, "Options", None)
    return hasattr(options, "simulate_uniform_ranks")


def _stand_in(rank: int, size: int) -> Any:
    make = getattr(c10d.FakeProcessGroup, "_create_internal", c10d.FakeProcessGroup)
    if not _knows_uniform_ranks():
        return make(rank, size)
    options = c10d.FakeProcessGroup.Options()
    options.simulate_uniform_ranks = True
    return make(rank, size, options)


def _nothing_to_do(_group: object, *_arguments: object, **_named: object) -> None:
    """Every rank has come, and nobody waits."""


# ---- What FakeProcessGroup leaves undone before torch 2.15 ---------------------------------------


def _then(original: Callable[..., Any], finish: Callable[..., None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(group: Any, *arguments: Any, **kwargs: Any) -> Any:
        work = original(group, *arguments, **kwargs)
        if not kwargs and _is_on_cpu(arguments[0]):
            with torch.no_grad():
                finish(group, *arguments)
        return work

    return call


def _is_on_cpu(argument: Any) -> bool:
    while isinstance(argument, list | tuple):
        if not argument:
            return False
        argument = argument[0]
    return isinstance(argument, Tensor) and argument.device.type == "cpu"


def _reduce(tensor: Tensor, operation: Any, size: int) -> None:
    """As many equal values as there are ranks, reduced; other operations change nothing."""
    if tensor.dtype is torch.bool:
        return
    if operation == c10d.ReduceOp.SUM:
        tensor.mul_(size)
    elif operation == c10d.ReduceOp.PRODUCT:
        tensor.pow_(size)


def _finish_allreduce(group: Any, tensors: list[Tensor], options: Any) -> None:
    for tensor in tensors:
        _reduce(tensor, options.reduceOp, group.size())


def _finish_reduce(group: Any, tensors: list[Tensor], options: Any) -> None:
    if options.rootRank == group.rank():
        _finish_allreduce(group, tensors, options)


def _finish_gather(
    _group: Any, outputs: list[list[Tensor]], inputs: list[Tensor], _options: Any
) -> None:
    for output, sent in zip(outputs, inputs, strict=False):  # no outputs but at the root
        for received in output:
            received.copy_(sent)


def _finish_scatter(
    group: Any, outputs: list[Tensor], inputs: list[list[Tensor]], _options: Any
) -> None:
    for received, sent in zip(outputs, inputs, strict=False):
        received.copy_(sent[group.rank()])


def _finish_reduce_scatter(
    group: Any, outputs: list[Tensor], inputs: list[list[Tensor]], options: Any
) -> None:
    for received, sent in zip(outputs, inputs, strict=True):
        received.copy_(sent[group.rank()])
        _reduce(received, options.reduceOp, group.size())


def _finish_alltoall(
    group: Any, outputs: list[Tensor], inputs: list[Tensor], _options: Any
) -> None:
    for received in outputs:
        sent = inputs[group.rank()]
        if received.shape == sent.shape:
            received.copy_(sent)


def _finish_alltoall_base(
    group: Any, output: Tensor, sent: Tensor, output_splits: list[int], *_rest: Any
) -> None:
    if not output_splits:  # else how much each rank sends is its own affair
        own = sent.chunk(group.size())[group.rank()]
        for received in output.chunk(group.size()):
            received.copy_(own)


_FINISHERS: dict[str, Callable[..., None]] = {
    "allreduce": _finish_allreduce,
    "reduce": _finish_reduce,
    "gather": _finish_gather,
    "scatter": _finish_scatter,
    "reduce_scatter": _finish_reduce_scatter,
    "alltoall": _finish_alltoall,
    "alltoall_base": _finish_alltoall_base,
}
