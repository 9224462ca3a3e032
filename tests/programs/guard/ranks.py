"""Fails a training step of several ranks at allocations of some of them, and compares what is left
on each rank with the same step unfailed.

ranks.py WRAPPER WORLD_SIZE CASE STEP EVERY [both|backward|optimizer]

WRAPPER is ddp, fsdp2, tp or "tp fsdp2"; "ddp whole" passes all micro-batches to one step of the
guard, "ddp views" has gradients in DDP's buckets, and "fsdp2 unsynced" reduces after the last. CASE
is one of training.py; in step 1 its optimizer's states are made. EVERY is "9", every ninth, or
"5:12", the sixth share of about twelve.
Each error comes on one rank, in turn; with "both" on the first and the last, with "backward" or
"optimizer" only there and only on the last; in the optimizer also where nothing is allocated. The
ranks are processes with gloo. The last line of the output is a document: how many errors there
were, and how the step ended on each rank.
"""

import faulthandler
import gc
import json
import os
import signal
import sys
import tempfile
import traceback
from collections import Counter
from contextlib import nullcontext, redirect_stderr
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from ends import Kind, Run, Unguarded, share_of
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from training import CASES as PLAIN_CASES
from training import Case, Decoder, Faults, Training, adamw, differences

import ullage

CASES = {**PLAIN_CASES, "gpt2 fused": Case(Decoder, adamw(fused=True))}
DEADLINE_S = 60.0
LIMIT_S = 3000


class RankFaults(Faults):
    """Errors in operations on the parts of this rank; it knows which are within a backward."""

    def __init__(self, numbers=None):
        super().__init__(numbers)
        self.backward = []
        self.optimizer = []
        self.is_in_optimizer = False

    def enter_optimizer(self, is_within):
        """Whether the optimizer's step runs."""
        self.is_in_optimizer = is_within

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(each.__name__ == "FakeTensor" for each in types):
            return func(*args, **(kwargs or {}))
        if any(each not in (torch.Tensor, torch.nn.Parameter) for each in types):
            return NotImplemented  # of a DTensor, what is done to its part is met next
        if torch._C._current_graph_task_id() != -1 and self.looks:
            self.backward.append(self.count + 1)
        if self.is_in_optimizer and self.looks:
            self.optimizer.append(self.count + 1)
        if func.namespace in ("c10d", "_c10d_functional", "fsdp"):
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


def split(model, mesh):
    """Splits the tensors of a GPT over ranks, and its tokens between them (sequence parallel)."""
    is_split = Shard(1)
    block = {
        "norm": SequenceParallel(), "norm2": SequenceParallel(),
        "qkv": ColwiseParallel(input_layouts=is_split),
        "out": RowwiseParallel(output_layouts=is_split),
        "mlp.0": ColwiseParallel(input_layouts=is_split),
        "mlp.2": RowwiseParallel(output_layouts=is_split),
    }  # fmt: skip
    for each in model.blocks:
        parallelize_module(each, mesh, block)
    parallelize_module(model, mesh, {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=is_split),
        "position": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
        "head": ColwiseParallel(input_layouts=is_split, output_layouts=Replicate()),
    })  # fmt: skip
    model.head.weight = model.embedding.weight


class RankTraining(Training):
    """A training of one of several ranks, each with batches of its own."""

    def __init__(self, case, wrapper):
        super().__init__(case)
        self.wrapper = wrapper
        self.number = dist.get_rank()
        if wrapper.startswith("ddp"):
            # Several buckets, so that some are reduced while others are not begun.
            self.model = DistributedDataParallel(
                self.model, bucket_cap_mb=0.002, gradient_as_bucket_view="views" in wrapper,
                find_unused_parameters="unused" in wrapper,
            )  # fmt: skip
        else:
            self.shard()
            self.optimizer = case.optimizer(self.model.parameters())
        torch.manual_seed(100 + self.number)

    def shard(self):
        """Shards parameters over data, over tensors, or over both, two ranks to a tensor."""
        world_size = dist.get_world_size()
        num_parts = 1 if "tp" not in self.wrapper else 2
        shape = (world_size // num_parts, num_parts)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
        self.number = mesh["data"].get_local_rank()  # ranks of a tensor have the same batch
        if "tp" in self.wrapper:
            split(self.model, mesh["tensor"])
        if "fsdp2" in self.wrapper:
            for block in self.model.blocks:
                fully_shard(block, mesh=mesh["data"])
            fully_shard(self.model, mesh=mesh["data"])

    def run_unwatched(self, inputs, targets, *, is_last):
        """Forward and backward of a micro-batch, and after the last the optimizer's step."""
        is_waiting = self.wrapper.startswith("ddp") and not is_last
        if "unsynced" in self.wrapper:
            self.model.set_requires_gradient_sync(is_last)
        with self.model.no_sync() if is_waiting else nullcontext():
            return super().run_unwatched(inputs, targets, is_last=is_last)

    def run_all(self, batches):
        """All micro-batches of a step."""
        return [self.run(*each, is_last=each is batches[-1]) for each in batches]

    def step(self, guard=None):
        """A step. With "whole" all micro-batches are one step of the guard."""
        if guard is None or "whole" not in self.wrapper:
            return super().step(guard)
        self.optimizer.zero_grad()
        return guard.step(self.run_all, self.draw())

    def state(self, losses):
        """All that a step leaves on this rank, by name."""
        local = {}
        with torch.no_grad():
            for name, value in super().state(losses).items():
                local[name] = value.to_local().clone() if isinstance(value, DTensor) else value
        return local


def train(options, numbers=None, *, is_guarded=True):
    """What is left on this rank of a step with errors, and of the step after, which shows that what
    DDP and FSDP2 keep is in order.
    """
    wrapper, case, step = options
    training = RankTraining(CASES[case], wrapper)
    for _ in range(step - 1):
        training.step()
    faults, guard = RankFaults(numbers), Unguarded()
    if is_guarded:
        guard = ullage.guard(
            training.model, training.optimizer, scaler=training.scaler, deadline_s=DEADLINE_S
        )
    with guard:
        training.faults = faults
        # Not by a method of its dict, which a guard would put back.
        training.optimizer.register_step_pre_hook(lambda *_: faults.enter_optimizer(True))
        training.optimizer.register_step_post_hook(lambda *_: faults.enter_optimizer(False))
        losses = training.step(guard)
        num_recoveries = guard.num_recoveries
        training.faults = nullcontext()
        losses += training.step(guard)
    return Run(training.state(losses), faults, num_recoveries)


def choose(faults, share, where):
    """The errors to put in: for each, the ranks and the operation."""
    world_size = dist.get_world_size()
    numbers = faults.allocating
    if where == "backward":
        numbers = sorted({*numbers} & {*faults.backward})
    elif where == "optimizer":
        numbers = faults.optimizer  # in-place operations, too
    counted = [None] * world_size
    dist.all_gather_object(counted, numbers)
    numbers = share_of(counted[0], share)
    for index, number in enumerate(numbers):
        ranks = {index % world_size}
        if where == "both":
            ranks = {0, world_size - 1}
        elif where in ("backward", "optimizer"):
            ranks = {world_size - 1}
        yield ranks, number


def sweep(options, share, where):
    """How the steps ended on this rank."""
    kind = Kind(partial(train, options))
    expected = kind.train(is_guarded=False).state
    state, faults, _ = kind.train()
    assert differences(state, expected) == []
    gc.freeze()
    results, examples = Counter(), {}
    for ranks, number in choose(faults, share, where):
        result = kind.end_of([number] * (dist.get_rank() in ranks), expected)
        results[result] += 1
        examples.setdefault(result, [sorted(ranks), number])
        dist.barrier()
    return {"num_allocations": len(faults.allocating), "results": results, "examples": examples}


def run_rank(rank, world_size, port, words, path):
    """A process."""
    wrapper, _, case, step, share, *rest = words
    faulthandler.enable()
    faulthandler.dump_traceback_later(LIMIT_S - 60, exit=True)
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=LIMIT_S)
    )
    where = os.environ.get("RANKS_LOG", os.devnull)
    with Path(where).open("a") as log, redirect_stderr(log):
        document = sweep((wrapper, case, int(step)), share, *(rest or ["one"]))
    Path(path).write_text(json.dumps(document))
    dist.barrier()
    dist.destroy_process_group()


def main():
    """Runs the sweep, each rank in a process."""
    words = sys.argv[1:]
    world_size = int(words[1])
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory) / str(rank) for rank in range(world_size)]
        children = []
        for rank, path in enumerate(paths):
            child = os.fork()
            if not child:
                code = 1
                try:
                    run_rank(rank, world_size, store.port, words, path)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            children.append(child)
        codes = []
        for _ in children:
            child, status = os.wait()
            codes.append(os.waitstatus_to_exitcode(status))
            if codes[-1]:
                for other in children:
                    if other != child:
                        os.kill(other, signal.SIGTERM)
                sys.exit(f"a rank ended with {codes[-1]}")
        documents = [json.loads(path.read_text()) for path in paths]
    print(json.dumps({"words": words, "ranks": documents}))


if __name__ == "__main__":
    main()
