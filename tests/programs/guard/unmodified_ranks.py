"""Trains on several ranks as scripts do that know nothing of a guard, and fails at some of the
operations of one rank.

torchrun --nproc-per-node 2 unmodified_ranks.py LOOP EVERY [both]

LOOP: ddp, transformers, lightning or accelerate, or ddp with options: "ddp unused", "ddp views",
"ddp hook".

Run it under `ullage exec --guard`: it fails at every EVERY-th allocation within what is guarded
("5:12": at the sixth share of about twelve), on each rank in turn, or with "both" on all ranks at
once, and compares what is left on each rank with the same training unfailed. The last line of the
output is a document: how the trainings ended on each rank, how many allocations are within what is
guarded and how many outside, and a digest of what the training leaves without an error.
"""

import faulthandler
import gc
import hashlib
import io
import json
import os
import sys
from collections import Counter
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
import unmodified
from ends import share_of
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from unmodified import STEPS, Network, Watched, place_of

LIMIT_S = 1200
WAIT_S = 120


class Partial(Network):
    """Has a layer that no call uses, and another that only some do."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(16, 16)
        self.sometimes = nn.Linear(16, 16)
        self.num_calls = 0

    def forward(self, input_ids, labels):
        """Logits and loss; and a value of which the loss uses nothing."""
        self.num_calls += 1
        result = super().forward(input_ids, labels)
        if self.num_calls % 2:
            result["other"] = self.sometimes(result["logits"].new_ones(2, 16))
        return result


class RankWatched(Watched):
    """Errors in operations of this rank that are no collectives; of which it knows the place."""

    def __init__(self, numbers=None):
        super().__init__(numbers)
        self.places = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace in ("c10d", "_c10d_functional"):
            return func(*args, **(kwargs or {}))
        count = len(self.allocating)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if len(self.allocating) > count:
            self.places[self.count] = place_of(sys._getframe())
        return result


def make_ddp(options):
    """A hand-written loop: two micro-batches, the first under no_sync, clipping, a schedule."""

    def ddp(tokens, faults, counts):
        model = DistributedDataParallel(
            Partial() if "unused" in options else Network(), bucket_cap_mb=0.002,
            find_unused_parameters="unused" in options,
            gradient_as_bucket_view="views" in options,
        )  # fmt: skip
        if "hook" in options:
            model.register_comm_hook(None, default_hooks.allreduce_hook)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
        loader = DataLoader(tokens, 2, sampler=range(dist.get_rank(), 16, dist.get_world_size()))
        batches = iter(loader)
        torch.manual_seed(100 + dist.get_rank())
        with faults:
            for _ in range(STEPS):
                for number in range(2):
                    batch = next(batches)
                    with model.no_sync() if number == 0 else nullcontext():
                        loss = model(**batch)["loss"] / 2
                        counts.num_losses += 1
                        loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                counts.num_steps += 1
                schedule.step()
                optimizer.zero_grad(set_to_none="views" not in options)
        return model, optimizer

    return ddp


def digest(state):
    """What tells two ends of a training apart."""
    file = io.BytesIO()
    for name, value in sorted(state.items()):
        file.write(name.encode())
        is_tensor = isinstance(value, torch.Tensor)
        file.write(value.detach().numpy().tobytes() if is_tensor else repr(value).encode())
    return hashlib.sha256(file.getvalue()).hexdigest()


def main():
    """Runs the sweep."""
    loop, share, *rest = sys.argv[1:]
    faulthandler.enable()
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=WAIT_S))
    if loop.startswith("ddp"):  # its options are words of it
        unmodified.LOOPS[loop] = make_ddp(loop.split()[1:])
    unmodified.train(loop, RankWatched())
    expected, faults, _ = unmodified.train(loop, RankWatched())
    guarded = [number for number, place in faults.places.items() if place == "guarded"]
    chosen = [share_of(guarded, share)]
    dist.broadcast_object_list(chosen)
    gc.freeze()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    results, examples = Counter(), {}
    for index, number in enumerate(chosen[0]):
        is_faulty = "both" in rest or rank == index % world_size
        result = unmodified.judge(loop, RankWatched([number] * is_faulty), expected)
        results[result] += 1
        examples.setdefault(result, [index, number])
    own = {
        "results": results, "examples": examples, "num_guarded": len(guarded),
        "num_script": len(faults.places) - len(guarded), "digest": digest(expected),
    }  # fmt: skip
    ranks = [None] * world_size
    dist.all_gather_object(ranks, own)
    if rank == 0:
        print(json.dumps({"loop": loop, "ranks": ranks}))
    sys.stdout.flush()
    dist.destroy_process_group()
    sys.stderr.flush()
    # A thread of gloo may let go of the last tensors after this, and aborts the process if the
    # interpreter has ended by then; seen once in 24 runs on a busy machine.
    os._exit(0)


if __name__ == "__main__":
    main()
