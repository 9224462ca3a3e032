"""The ranks of a job that train one model together: how a process comes to be one of them.

A script that knows nothing of other ranks is started by torchrun like any other: each rank runs all
of it. Before its first line the rank's device is made the current one (`begin`), and DataLoaders
deal their rows out (rank_batches.py). As the plan is applied the process group is made, all begin
with the parameters of rank 0, and what is drawn at random after that is drawn apart.

A program that has made its process group itself shares its batches out itself, too: there nothing
of this is done.
"""

from __future__ import annotations

import os
import random
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ullage.errors import PlanError
from ullage.techniques.means.rank_batches import deal_batches

if TYPE_CHECKING:
    from ullage.techniques.applying.changes import Changes
    from ullage.techniques.applying.target import Target

_SEEDS = 2**32
# The process group that was made here, while there is one.
_MADE: list[Any] = []


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of a job, seen from one of them.

    Attributes:
        rank: the number of this one.
        size: how many there are.
        is_ours: whether the process group was made here, for a program that has none.
    """

    rank: int
    size: int
    is_ours: bool


def check_is_whole(target: Target, technique: str) -> None:
    """Raises PlanError if the program distributes its model itself."""
    for module in target.model.modules():
        names = {base.__name__ for base in type(module).__mro__}
        if names & {"DistributedDataParallel", "FSDPModule", "FullyShardedDataParallel"}:
            kind = type(module).__name__
            raise PlanError(f"{technique!r}: the program distributes its training itself ({kind})")
    if any(hasattr(parameter, "device_mesh") for parameter in target.model.parameters()):
        raise PlanError(f"{technique!r}: the program distributes its parameters itself (DTensor)")


def check_is_eager(target: Target, technique: str) -> None:
    """Raises PlanError if the program compiles the whole model."""
    if any(type(module).__name__ == "OptimizedModule" for module in target.model.modules()):
        raise PlanError(
            f"{technique!r}: the program compiles the whole model, and the communication between "
            "ranks would be in the graph; remove torch.compile"
        )


def begin(torch: ModuleType) -> None:
    """Before a script's first line: its device is that of its rank, and it gets its share of rows.

    The device is chosen when CUDA is first used, and not before: a process must not have used it to
    fork.
    """
    local = int(os.environ.get("LOCAL_RANK", "0"))
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if local:
        torch.cuda._lazy_call(lambda: torch.cuda.set_device(local))
    if size > 1:
        deal_batches(is_shared_out, int(os.environ["RANK"]), size)


def is_shared_out() -> bool:
    """Whether the program has made its process group itself, and so knows of its ranks."""
    from torch import distributed

    is_there = distributed.is_available() and distributed.is_initialized()
    return is_there and distributed.group.WORLD not in _MADE


def join(technique: str, model: Any, changes: Changes) -> Ranks:
    """Makes this process a rank of its job, where the program has not done so.

    Raises:
        PlanError: it is alone, or its model is on the device of another rank.
    """
    import torch
    from torch import distributed

    if not distributed.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) < 2:
            raise PlanError(
                f"{technique!r} shares a training among several ranks, and this process is alone; "
                "start it with, such as: torchrun --nproc-per-node 2"
            )
        has_cuda = torch.cuda.is_available()
        distributed.init_process_group("cpu:gloo,cuda:nccl" if has_cuda else "gloo")
        _MADE[:] = [distributed.group.WORLD]
        changes.on_undo(_leave)
    ranks = Ranks(
        distributed.get_rank(),
        distributed.get_world_size(),
        is_ours=not is_shared_out(),
    )
    if ranks.size < 2:
        raise PlanError(f"{technique!r} shares a training among several ranks, and there is one")
    _check_device(technique, model)
    return ranks


def settle(module: Any, device: Any, ranks: Ranks) -> None:
    """Takes what a module has whole to a device, with the values of rank 0 where the program does
    not see to it that all ranks begin alike.
    """
    from torch import distributed

    for tensor in (*module.parameters(), *module.buffers()):
        if hasattr(tensor, "device_mesh") or tensor.is_meta:
            continue
        tensor.data = tensor.data.to(device)
        if ranks.is_ours:
            values = tensor.detach().contiguous()
            distributed.broadcast(values, 0)
            if values.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(values)


def draw_apart(ranks: Ranks) -> None:
    """What each rank draws at random from now on is its own; rank 0 draws what it would have."""
    import torch

    if not ranks.is_ours or ranks.rank == 0:
        return
    torch.manual_seed((torch.initial_seed() + ranks.rank) % _SEEDS)
    random.seed(random.getrandbits(32) + ranks.rank)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed((numpy.random.randint(_SEEDS // 2) + ranks.rank) % _SEEDS)


def _check_device(technique: str, model: Any) -> None:
    """Raises PlanError where a model is on a GPU that is another rank's."""
    import torch

    local = os.environ.get("LOCAL_RANK", "0")
    for parameter in model.parameters():
        if parameter.is_cuda and parameter.device.index != torch.cuda.current_device():
            raise PlanError(
                f"{technique!r}: the program has put its model on {parameter.device}, and this is "
                f"local rank {local}, on cuda:{torch.cuda.current_device()}; write 'cuda' without "
                "a number"
            )


def _leave() -> None:
    from torch import distributed

    if distributed.is_initialized() and distributed.group.WORLD in _MADE:
        distributed.destroy_process_group()
    _MADE.clear()
