"""Makes a process one of the ranks of a job that train a model together.

torchrun starts a script that knows nothing of other ranks like any other: each rank runs all of it.
Before its first line, `begin` selects the rank's device and makes DataLoaders distribute their rows
(rank_batches.py). When the plan is applied, the process group is created, all ranks get the
parameters of rank 0, and from then on each rank draws its own random numbers.

A program that has created its process group itself also distributes its batches itself. Then
nothing of this is done.
"""

from __future__ import annotations

import functools
import inspect
import os
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ullage.ground.errors import PlanError

if TYPE_CHECKING:
    from ullage.act.techniques.applying.changes import Changes
    from ullage.act.techniques.applying.target import Target


# Distributes the rows that a script loads among ranks, for scripts that know nothing of other
# ranks.


def distribute_batches(program_has_ranks: Callable[[], bool], rank: int, size: int) -> None:
    """Makes each DataLoader that a script creates from now on distribute its rows among the ranks,
    unless the program does this itself.
    """
    from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

    make = DataLoader.__init__
    signature = inspect.signature(make)

    class Distributed(DistributedSampler):  # type: ignore[misc]
        """Uses another order in each epoch, without a call of `set_epoch`."""

        def __iter__(self) -> Any:
            rows = super().__iter__()
            self.set_epoch(self.epoch + 1)
            return rows

    @functools.wraps(make)
    def make_distributed(*arguments: Any, **keywords: Any) -> None:
        bound = signature.bind(*arguments, **keywords)
        options = bound.arguments
        data, generator = options.get("dataset"), options.get("generator")
        if not program_has_ranks():
            has_own = options.get("sampler") is not None or options.get("batch_sampler") is not None
            if has_own or isinstance(data, IterableDataset):
                warnings.warn(
                    "a DataLoader with a sampler of its own, or over a stream, is not distributed "
                    "among ranks: they get the same batches unless the program distinguishes them",
                    stacklevel=2,
                )
            else:
                options["sampler"] = Distributed(
                    data, size, rank, shuffle=bool(options.get("shuffle")),
                    seed=0 if generator is None else generator.initial_seed(),
                )  # fmt: skip
                options["shuffle"] = None
        make(*bound.args, **bound.kwargs)

    DataLoader.__init__ = make_distributed


_SEEDS = 2**32
# The process group that was created here, if any.
_GROUPS: list[Any] = []


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of a job, seen from one of them.

    Attributes:
        rank: the number of this rank.
        size: the number of ranks.
        is_ours: whether the process group was created here, for a program without one.
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
    """Runs before the first line of a script: selects the rank's device and its share of rows.

    The device is selected when CUDA is first used, and not before: a process that has used CUDA
    cannot fork.
    """
    local = int(os.environ.get("LOCAL_RANK", "0"))
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if local:
        torch.cuda._lazy_call(lambda: torch.cuda.set_device(local))
    if size > 1:
        distribute_batches(program_has_ranks, int(os.environ["RANK"]), size)


def program_has_ranks() -> bool:
    """True if the program has created its process group itself, and so knows its ranks."""
    from torch import distributed

    is_there = distributed.is_available() and distributed.is_initialized()
    return is_there and distributed.group.WORLD not in _GROUPS


def join(technique: str, model: Any, changes: Changes) -> Ranks:
    """Makes this process a rank of its job, if the program has not done so.

    Raises:
        PlanError: there is no other rank, or the model is on the device of another rank.
    """
    import torch
    from torch import distributed

    if not distributed.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) < 2:
            raise PlanError(
                f"{technique!r} distributes a training among several ranks, and this is the only "
                "process; start it for example with: torchrun --nproc-per-node 2"
            )
        has_cuda = torch.cuda.is_available()
        distributed.init_process_group("cpu:gloo,cuda:nccl" if has_cuda else "gloo")
        _GROUPS[:] = [distributed.group.WORLD]
        changes.on_undo(_leave)
    ranks = Ranks(
        distributed.get_rank(),
        distributed.get_world_size(),
        is_ours=not program_has_ranks(),
    )
    if ranks.size < 2:
        raise PlanError(
            f"{technique!r} distributes a training among several ranks, and there is only one"
        )
    _check_device(technique, model)
    return ranks


def settle(module: Any, device: Any, ranks: Ranks) -> None:
    """Moves the tensors of a module that are not split to a device, with the values of rank 0 if
    the process group was created here.
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
    """Gives each rank other random numbers from now on; those of rank 0 do not change."""
    import torch

    if not ranks.is_ours or ranks.rank == 0:
        return
    torch.manual_seed((torch.initial_seed() + ranks.rank) % _SEEDS)
    random.seed(random.getrandbits(32) + ranks.rank)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed((numpy.random.randint(_SEEDS // 2) + ranks.rank) % _SEEDS)


def _check_device(technique: str, model: Any) -> None:
    """Raises PlanError if a model is on the GPU of another rank."""
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

    if distributed.is_initialized() and distributed.group.WORLD in _GROUPS:
        distributed.destroy_process_group()
    _GROUPS.clear()
