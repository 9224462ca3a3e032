"""Trains small models under plans of several techniques that are drawn, on the CPU.

arithmetic.py mixed 0 50 MODEL...       plans drawn with the seeds 0 to 49
arithmetic.py faults 0 20 MODEL...      such plans, with an exception somewhere

The last line of the output is a list, a document a case: model, actions, and what came of it: that
of same_training.py, or for a fault where it came, and what is wrong after it.
"""

import copy
import json
import random
import sys

import torch
from models import MODELS
from same_training import AFTER, Training, compare, judge, left_over, marks

from ullage.act.techniques.applying.changes import Changes
from ullage.act.techniques.catalog import TECHNIQUES
from ullage.act.techniques.technique import Place, Semantics
from ullage.ground.errors import PlanError

OURS = [
    one
    for one in TECHNIQUES.values()
    if one.semantics is Semantics.SAME
    and one.apply
    and not one.needs_ranks
    and not one.is_for_chains
]


class Fault(Exception):
    """What a test puts in the way."""


def fails(*_, **__):
    """A part of a program that does."""
    raise Fault


def draw_actions(name, draw):
    """Several techniques, each on some modules, of which none excludes another."""
    training, actions = Training({"program": name}), []
    for technique in draw.sample(OURS, len(OURS))[: draw.randint(2, 5)]:
        modules = ()
        if technique.place is Place.MODULES:
            made = training.made
            modules = made.mlps if technique.name == "tiled_mlp" else made.blocks
            if not modules:
                continue
            modules = draw.sample(modules, draw.randint(1, len(modules)))
        settings = draw.choice([{}, *technique.variants])
        action = {"technique": technique.name, "modules": modules, "settings": settings}
        try:
            with training.applied([*actions, action]):
                training.loss().backward()  # some is found out only then
            actions.append(action)
            training.made.model.zero_grad()
        except PlanError:  # it is not for this model, or does not go with another
            continue
    return actions


def break_it(training, draw, changes):
    """Puts an exception in the way of a training; says where."""
    where = draw.choice(["forward", "backward", "hook", "apply", "step"])
    model = training.made.model
    leaves = [one for one in model.modules() if not list(one.children())]
    if where == "forward":
        changes.set(draw.choice(leaves), "forward", fails)
    elif where == "backward":
        parameters = [one for one in model.parameters() if one.requires_grad]
        changes.hook(draw.choice(parameters).register_hook(fails))
    elif where == "hook":
        changes.hook(draw.choice(leaves).register_forward_hook(fails))
    elif where == "step":
        changes.hook(training.optimizer.register_step_pre_hook(fails))
    else:
        count = draw.randint(1, 4)
        set_one = Changes.set

        def set_or_fail(self, owner, key, value):
            nonlocal count
            count -= 1
            set_one(self, owner, key, value)
            if count == 0:
                raise Fault

        changes.set(Changes, "set", set_or_fail)
    return where


def judge_fault(name, actions, draw):
    """Where an exception came under a plan, and what is wrong after it."""
    training, other = Training({"program": name}), Training({"program": name})
    before = marks(training)
    with Changes() as changes:
        where = break_it(training, draw, changes)
        try:
            with training.applied(actions):
                training.steps(AFTER)
            where = "not reached"
        except Fault:
            pass
        except PlanError as error:
            return {"refused": str(error), "left over": left_over(training, before)}
    left = left_over(training, before)
    other.made.model.load_state_dict(training.made.model.state_dict())
    # It shares tensors.
    other.optimizer.load_state_dict(copy.deepcopy(training.optimizer.state_dict()))
    after = []
    for one in (training, other):
        one.seed(3)
        after.append(one.steps(AFTER))
    return {"fault": where, "left over": left, "equal": compare(*after)[1]}


def main():
    """Draws the cases, and judges them."""
    kind, first, last, *names = sys.argv[1:]
    torch.set_num_threads(1)
    found = []
    for name in names or MODELS:
        for number in range(int(first), int(last)):
            draw = random.Random(f"{name} {number}")
            case = {"program": name, "actions": draw_actions(name, draw)}
            is_fault = kind == "faults"
            result = judge_fault(name, case["actions"], draw) if is_fault else judge(case)
            found.append(case | {"number": number} | result)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
