"""Trains with an error in every so-many-th step, and compares with the same training without.

repeated.py CASE STEPS EVERY      each error is at a random allocation of its step

The last line is a document: the errors, how many steps were lost, where the losses or the state at
the end differ, and how much memory the process has grown by in the second half.
"""

import gc
import json
import random
import sys
from dataclasses import replace

import torch
from cases import CASES, with_checkpoints
from training import Faults, Training, differences

import ullage
from ullage.errors import GuardError

PAGE_BYTES = 4096
CHANGES = {
    "autocast": lambda case: replace(case, is_scaled=True),
    "accumulation": lambda case: replace(case, micro_batches=2),
    "checkpointing": lambda case: replace(
        case, model=lambda: with_checkpoints(case.model(), use_reentrant=False)
    ),
}


def find_case(name):
    """A case of the sweep, or one and a change of it, as "cnn+autocast"."""
    base, _, change = name.partition("+")
    return CHANGES[change](CASES[base]) if change else CASES[base]


def resident_bytes():
    """The memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


def train(case, steps):
    """A training without errors: its losses, its state, and the allocations of a later step."""
    training = Training(case)
    losses = []
    for number in range(steps):
        training.faults = Faults() if number == 1 else Faults([])
        losses.append(training.step())
        if number == 1:
            places = training.faults.allocating
    return losses, training.state([]), places


def train_guarded(case, steps, every, places):
    """The same with errors."""
    chance = random.Random(7)
    training = Training(case)
    document = {"errors": 0, "lost": [], "resident": []}
    losses = []
    with ullage.guard(training.model, training.optimizer, scaler=training.scaler,
                      calm_steps=2) as guard:  # fmt: skip
        for number in range(steps):
            has_error = number % every == every - 1
            training.faults = Faults([chance.choice(places)] if has_error else [])
            try:
                losses.append(training.step(guard))
            except (GuardError, torch.OutOfMemoryError) as error:
                document["lost"].append([number, str(error)])
                break
            document["errors"] += training.faults.num_raised
            if number in (steps // 2, steps - 1):
                gc.collect()
                document["resident"].append(resident_bytes())
        document["recoveries"] = guard.num_recoveries
    return losses, training.state([]), document


def main():
    """Trains twice, and prints."""
    name, steps, every = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    case = find_case(name)
    gc.freeze()
    losses, state, places = train(case, steps)
    guarded, guarded_state, document = train_guarded(case, steps, every, places)
    same = [torch.equal(torch.stack(a), torch.stack(b))
            for a, b in zip(losses, guarded, strict=False)]  # fmt: skip
    document |= {
        "case": name, "steps": steps, "every": every, "equal_losses": sum(same),
        "different_state": differences(guarded_state, state),
        "last_loss": losses[-1][-1].item(), "first_loss": losses[0][-1].item(),
    }  # fmt: skip
    print(json.dumps(document))


if __name__ == "__main__":
    main()
