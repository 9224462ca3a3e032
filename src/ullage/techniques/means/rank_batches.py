"""Each rank's own rows of what a script loads, where the script knows nothing of other ranks.

A DataLoader that goes over its data by number, in order or shuffled, gets a DistributedSampler: in
each epoch every row goes to one rank (some rows to two, where they do not come out even), and the
loader is as many times shorter as there are ranks. One that has a sampler of its own, or whose data
come as a stream, is left alone: then the program has to tell the ranks apart itself.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any


def deal_batches(is_shared_out: Callable[[], bool], rank: int, size: int) -> None:
    """Has the DataLoaders that a script makes from now on deal their rows out to the ranks, unless
    it shares them out itself.
    """
    from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

    make = DataLoader.__init__
    signature = inspect.signature(make)

    class Dealt(DistributedSampler):  # type: ignore[misc]
        """Another order in each epoch, without being told."""

        def __iter__(self) -> Any:
            rows = super().__iter__()
            self.set_epoch(self.epoch + 1)
            return rows

    @functools.wraps(make)
    def make_dealing(*arguments: Any, **keywords: Any) -> None:
        bound = signature.bind(*arguments, **keywords)
        options = bound.arguments
        data, generator = options.get("dataset"), options.get("generator")
        if not is_shared_out():
            has_own = options.get("sampler") is not None or options.get("batch_sampler") is not None
            if has_own or isinstance(data, IterableDataset):
                warnings.warn(
                    "a DataLoader with a sampler of its own, or over a stream, is not dealt out to "
                    "ranks: they have the same batches unless the program tells them apart",
                    stacklevel=2,
                )
            else:
                options["sampler"] = Dealt(
                    data, size, rank, shuffle=bool(options.get("shuffle")),
                    seed=0 if generator is None else generator.initial_seed(),
                )  # fmt: skip
                options["shuffle"] = None
        make(*bound.args, **bound.kwargs)

    DataLoader.__init__ = make_dealing
