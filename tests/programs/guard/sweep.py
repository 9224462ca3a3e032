"""Fails a training step at every allocation, and compares what is left with the same step unfailed.

sweep.py CASE STEP EVERY [all|calls]
                                    step 1 makes the optimizer's states, step 2 has them; every
                                    EVERY-th allocation, or with "all" every operation; with
                                    "calls" those of the model are guarded, not the step

The last line of the output is a document: how many errors there were, and how the step ended.
"""

import gc
import json
import sys
from collections import Counter

import torch
from cases import CASES
from training import Faults, Training, differences

import ullage
from ullage.errors import GuardError


def train(case, step, numbers=None, *, is_guarded=False):
    """What is left of a step, with errors at some of its operations, and what was counted."""
    training = Training(case)
    for _ in range(step - 1):
        training.step()
    faults = Faults(numbers)
    has_calls = "calls" in sys.argv
    if numbers is None and not is_guarded:
        training.faults = faults
        return training.state(training.step()), faults, 0
    settings = {} if has_calls else {"scaler": training.scaler}
    make_guard = ullage.guard_model if has_calls else ullage.guard
    with make_guard(training.model, training.optimizer, **settings) as guard:
        training.faults = faults
        losses = training.step(None if has_calls else guard)
        num_recoveries = guard.num_recoveries
    return training.state(losses), faults, num_recoveries


def judge(case, step, numbers, expected):
    """How a step with errors ended: "equal", "refused: ...", or what differs."""
    try:
        state, faults, num_recoveries = train(case, step, numbers)
    except GuardError as error:
        return f"refused: {error}"
    except torch.OutOfMemoryError:
        return "the script's own"
    # Where there is no memory for a copy of buffers, it is made later, which is no recovery.
    if faults.num_raised == 0 or (num_recoveries == 0 and "calls" not in sys.argv):
        return "no error came"
    wrong = differences(state, expected)
    return f"differs: {', '.join(wrong[:3])}" if wrong else "equal"


def main():
    """Runs the sweep."""
    name, step, every, *rest = sys.argv[1:]
    case = CASES[name]
    expected, faults, _ = train(case, int(step))
    assert differences(train(case, int(step))[0], expected) == []
    if rest == ["calls"]:
        _, faults, _ = train(case, int(step), is_guarded=True)
    numbers = range(1, faults.count + 1) if rest == ["all"] else faults.allocating
    gc.freeze()
    results = Counter()
    examples = {}
    for number in numbers[:: int(every)]:
        result = judge(case, int(step), [number], expected)
        results[result] += 1
        examples.setdefault(result, number)
    document = {
        "case": name, "step": int(step), "num_operations": faults.count,
        "num_allocations": len(faults.allocating), "results": results, "examples": examples,
    }  # fmt: skip
    print(json.dumps(document))


if __name__ == "__main__":
    main()
