"""Distributes the rows that a script loads among ranks, for scripts that know nothing of other
ranks.

A DataLoader over indexed data, in order or shuffled, gets a DistributedSampler. In each epoch every
row goes to one rank (some rows to two, if they do not divide evenly), and the number of batches is
divided by the number of ranks. A DataLoader with its own sampler, or over a stream of data, is not
changed: its program must distinguish the ranks itself.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any


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
