"""Trains under a plan on several ranks as long as a context lasts, and says what is left of it.

`ranks_undone.py PLAN...`: for each, rank 0 prints a document: by how much two steps under the plan
and one after it differ from what they come to by hand, and what is left of the plan then, and
after a fault in forward or in backward.
"""

import json
import os
import sys

import torch
from ranks import model, rows
from torch import distributed

from ullage.act.techniques.plan import Plan

RANK = int(os.environ["RANK"])


class Fault(Exception):
    """What is put in the way."""


def make():
    """A model and its optimizer, on every rank the same."""
    torch.manual_seed(0)
    made = model()
    return made, torch.optim.AdamW(made.parameters(), lr=1e-2)


def looks(made, optimizer):
    """All that is on a model and its optimizer beside values."""
    found = {"held": [id(one) for group in optimizer.param_groups for one in group["params"]]}
    for name, one in [("optimizer", optimizer), *made.named_modules()]:
        for key, value in vars(one).items():
            if key not in {"state", "param_groups"}:
                found[f"{name}.{key}"] = len(value) if "hooks" in key else id(value)
        found[f"class of {name}"] = type(one).__name__
    for name, one in made.named_parameters():
        found[f"parameter {name}"] = type(one).__name__, id(one)
    return found


def differences(before, after):
    """Names of what was not there before, or is another."""
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def loss_of(made, number, rank):
    """Of a row."""
    _, x, target = rows()[2 * number + rank]
    return (made(x) - target).square().mean()


def step(made, optimizer, number):
    """One step, on a row of this rank's."""
    loss_of(made, number, RANK).backward()
    optimizer.step()
    optimizer.zero_grad()


def by_hand():
    """Two steps as two ranks take them together, then one as this rank takes it alone."""
    made, optimizer = make()
    for number, ranks in ((0, (0, 1)), (1, (0, 1)), (2, (RANK,))):
        for rank in ranks:
            (loss_of(made, number, rank) / len(ranks)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return made.state_dict()


def trained(plan):
    """What came of steps under a plan and after it."""
    made, optimizer = make()
    before, keys = looks(made, optimizer), list(made.state_dict())
    with plan.applied(made, optimizer):
        step(made, optimizer, 0)
        step(made, optimizer, 1)
        has_keys = list(made.state_dict()) == keys
    left = differences(before, looks(made, optimizer))
    step(made, optimizer, 2)
    expected = by_hand()
    values = made.state_dict()
    difference = max((values[name] - expected[name]).abs().max().item() for name in keys)
    return {"left": left, "has_keys": has_keys, "difference": difference}


def failed(plan, where):
    """What is left of a plan after a fault."""
    made, optimizer = make()
    values = {name: one.clone() for name, one in made.state_dict().items()}

    def fail(*_):
        raise Fault

    def hook(_module, _given, result):
        if where == "forward":
            fail()
        result.register_hook(fail)

    made.blocks[2].register_forward_hook(hook)
    before = looks(made, optimizer)
    try:
        with plan.applied(made, optimizer):
            step(made, optimizer, 0)
    except Fault:
        left = differences(before, looks(made, optimizer))
    else:
        return ["nothing failed"]
    changed = [
        name for name, one in made.state_dict().items() if not torch.equal(one, values[name])
    ]
    return left + changed


def main():
    """Tries each plan."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    for path in sys.argv[1:]:
        plan = Plan.load(path)
        found = {
            "plan": plan.summary,
            **trained(plan),
            **{where: failed(plan, where) for where in ("forward", "backward")},
        }
        if RANK == 0:
            print(json.dumps(found), flush=True)
    distributed.destroy_process_group()
    # A thread of gloo may still be dropping the last tensor it sent, and up to Python 3.13 a thread
    # that wants Python's lock while the interpreter ends aborts the process (cpython issue 87135).
    os._exit(0)


if __name__ == "__main__":
    main()
