"""Fails a training at every allocation, and compares what is left with the same training unfailed.

sweep.py CASE STEP EVERY [all]      CASE is a training of cases.py: step 1 makes the optimizer's
                                    states, step 2 has them. Every EVERY-th allocation ("5:12": the
                                    sixth share of about twelve), or with "all" every operation
sweep.py KIND - EVERY               KIND is a training of kinds.py

The last line of the output is a document: how many errors there were, and how the training ended.
"""

import gc
import json
import sys

import torch
from cases import CASES
from ends import Kind, Run, Unguarded, share_of
from training import Faults, Training

import ullage


def of_case(name, step, *, at_all):
    """A step of a case."""

    def train(numbers=None, *, is_guarded=True):
        training = Training(CASES[name])
        for _ in range(step - 1):
            training.step()
        faults = Faults(numbers)
        guard = Unguarded()
        if is_guarded:
            guard = ullage.guard(training.model, training.optimizer, scaler=training.scaler)
        with guard:
            training.faults = faults
            losses = training.step(guard)
        return Run(training.state(losses), faults, guard.num_recoveries)

    return Kind(train, at_all)


def find_kind(name, step, rest):
    """A training by the words of the command."""
    if step != "-":
        return of_case(name, int(step), at_all="all" in rest)
    from kinds import KINDS

    return KINDS[name]


def main():
    """Runs the sweep."""
    name, step, share, *rest = sys.argv[1:]
    torch.set_num_threads(1)
    kind = find_kind(name, step, rest)
    expected = kind.train(is_guarded=False).state
    for is_guarded in (False, True):
        calm = kind.train(is_guarded=is_guarded)
        wrong = kind.differ(calm.state, expected)
        assert not wrong, f"{wrong} differ in a second training without errors, {is_guarded=}"
    errors = share_of(kind.errors(calm.faults), share)
    gc.freeze()
    document = {
        "case": name, "step": step, "num_operations": calm.faults.count,
        "num_allocations": len(calm.faults.allocating), **kind.sweep(errors, expected),
    }  # fmt: skip
    print(json.dumps(document))


if __name__ == "__main__":
    main()
