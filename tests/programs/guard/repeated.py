"""Trains with an error in every so-many-th step, and compares with the same training without.

repeated.py CASE STEPS EVERY [SECONDS]    each error is at a random allocation of its step

After so many seconds of the training with errors both end with the steps that were done by then.

CASE is one of the sweep, or one and a change of it, as "cnn+autocast". With "+ddp" there are two
ranks, processes with gloo, of which a random one has the error.
The last line is a document: the errors, how many steps were lost, where the losses or the state at
the end differ, and how much memory the process has grown by in the second half.
"""

import faulthandler
import gc
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from cases import CASES, with_checkpoints
from training import Faults, Training, differences

import ullage
from ullage.ground.errors import GuardError

PAGE_BYTES = 4096
NUM_RANKS = 2
LIMIT_S = 3000
CHANGES = {
    "autocast": lambda case: replace(case, is_scaled=True),
    "accumulation": lambda case: replace(case, micro_batches=2),
    "checkpointing": lambda case: replace(
        case, model=lambda: with_checkpoints(case.model(), use_reentrant=False)
    ),
}


class Program:
    """A case and a change of it: how its trainings are made, and what fails on which rank."""

    def __init__(self, name):
        base, _, change = name.partition("+")
        self.name, self.change = name, change
        self.make_faults = Faults
        self.plans = None
        self.rank, self.num_ranks = 0, 1
        if change == "compile":
            import compiled

            self.make = lambda: compiled.CompiledTraining(compiled.find_case(base))
            self.plans = []
        elif change == "ddp":
            import ranks

            self.make = lambda: ranks.RankTraining(CASES[base], "ddp")
            self.make_faults = ranks.RankFaults
            self.rank, self.num_ranks = dist.get_rank(), dist.get_world_size()
        else:
            case = CHANGES[change](CASES[base]) if change else CASES[base]
            self.make = lambda: Training(case)

    @property
    def num_graphs(self):
        """How many graphs were compiled since the last call."""
        if self.change != "compile":
            return 0
        counters = torch._dynamo.utils.counters
        count = counters["stats"]["unique_graphs"]
        counters.clear()
        return count

    def is_over(self, end_s):
        """Whether the clock of rank 0 has come to a time."""
        flag = torch.tensor(float(time.monotonic() > end_s))
        if self.num_ranks > 1:
            dist.broadcast(flag, 0)
        return bool(flag)

    def place_of(self, places):
        """The places on rank 0, where each rank's operations are the same."""
        if self.num_ranks > 1:
            gathered = [None] * self.num_ranks
            dist.all_gather_object(gathered, places)
            places = gathered[0]
        return places


def resident_bytes():
    """The memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


def find_places(program):
    """The allocations of a later step, by their numbers."""
    training = program.make()
    training.step()
    training.faults = program.make_faults()
    training.step()
    gc.freeze()  # what torch loads with its first steps
    return program.place_of(training.faults.allocating)


def train(program, steps):
    """A training without errors: its losses and its state."""
    training = program.make()
    losses = [training.step() for _ in range(steps)]
    return losses, training.state([])


def train_guarded(program, steps, every, end_s):
    """The same with errors, until the clock has come to a time."""
    places = find_places(program)
    program.num_graphs  # noqa: B018  # of finding the places
    chance = random.Random(7)
    training = program.make()
    document = {"errors": 0, "recoveries": 0, "lost": [], "resident": []}
    losses = []
    with ullage.guard(training.model, training.optimizer, scaler=training.scaler,
                      plans=program.plans, calm_steps=2) as guard:  # fmt: skip
        for number in range(steps):
            if number and number % 20 == 0 and program.is_over(end_s):
                break
            has_error = number % every == every - 1
            place, rank = chance.choice(places), chance.randrange(program.num_ranks)
            is_own = has_error and rank == program.rank
            training.faults = program.make_faults([place] if is_own else [])
            before = guard.num_recoveries
            try:
                losses.append(training.step(guard))
            except (GuardError, torch.OutOfMemoryError) as error:
                document["lost"].append([number, str(error)])
                break
            document["errors"] += training.faults.num_raised
            document["recoveries"] += guard.num_recoveries - before if is_own else 0
            if number in (steps // 2, steps - 1):
                gc.collect()
                document["resident"].append(resident_bytes())
    training.faults = nullcontext()
    return losses, training.state([]), document


def compare(name, steps, every, seconds=math.inf):
    """Trains twice: the document."""
    program = Program(name)
    end_s = time.monotonic() + seconds
    guarded, guarded_state, document = train_guarded(program, steps, every, end_s)
    graphs = [program.num_graphs]
    losses, state = train(program, len(guarded))
    graphs.append(program.num_graphs)
    same = [torch.equal(torch.stack(a), torch.stack(b))
            for a, b in zip(losses, guarded, strict=True)]  # fmt: skip
    return document | {
        "case": name, "steps": len(guarded) + len(document["lost"]), "every": every,
        "equal_losses": sum(same), "different_state": differences(guarded_state, state),
        "graphs": graphs, "last_loss": losses[-1][-1].item(), "first_loss": losses[0][-1].item(),
    }  # fmt: skip


def run_rank(rank, port, words, path):
    """A process of several."""
    faulthandler.dump_traceback_later(LIMIT_S - 60, exit=True)
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=NUM_RANKS, timeout=timedelta(seconds=LIMIT_S)
    )
    path.write_text(json.dumps(compare(words[0], *map(int, words[1:]))))
    dist.barrier()
    dist.destroy_process_group()


def fork_rank(*arguments):
    """The number of a process that is a rank; it does not return in that process."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        run_rank(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def compare_ranks(words):
    """Each rank in a process: the document of all of them."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory) / str(rank) for rank in range(NUM_RANKS)]
        children = {fork_rank(rank, store.port, words, path) for rank, path in enumerate(paths)}
        while children:
            child, status = os.wait()
            children.discard(child)
            if status:
                for other in children:
                    os.kill(other, signal.SIGTERM)
                sys.exit(f"a rank ended with {os.waitstatus_to_exitcode(status)}")
        documents = [json.loads(path.read_text()) for path in paths]
    return documents[0] | {
        "errors": sum(each["errors"] for each in documents),
        "recoveries": sum(each["recoveries"] for each in documents),
        "lost": [entry for each in documents for entry in each["lost"]],
        "equal_losses": min(each["equal_losses"] for each in documents),
        "different_state": [name for each in documents for name in each["different_state"]],
    }


def main():
    """Trains twice, and prints."""
    name, *numbers = sys.argv[1:]
    torch.set_num_threads(1)
    has_ranks = name.endswith("+ddp")
    document = compare_ranks(sys.argv[1:]) if has_ranks else compare(name, *map(int, numbers))
    print(json.dumps(document))


if __name__ == "__main__":
    main()
