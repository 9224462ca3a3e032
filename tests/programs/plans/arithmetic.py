"""Trains small models on the CPU under plans and without, and says where the numbers differ.

arithmetic.py alone MODEL...            each technique of the same mathematics by itself
arithmetic.py mixed 0 50 MODEL...       plans of several, drawn with the seeds 0 to 49
arithmetic.py faults 0 20 MODEL...      such plans, with an exception somewhere

The last line of the output is a list, a document a case: model, actions, and what came of it:
"equal" bit for bit, "close" (of techniques that take sums in another order), "refused", or what
differs.
"""

import copy
import json
import random
import sys

import torch
from models import MODELS
from torch import nn

from ullage.errors import PlanError
from ullage.techniques.applying.apply import describe_program
from ullage.techniques.applying.changes import Changes
from ullage.techniques.catalog import TECHNIQUES
from ullage.techniques.plan import Plan
from ullage.techniques.technique import Action, Place, Semantics

STEPS = 3
RATE = 1e-3
OURS = [
    one
    for one in TECHNIQUES.values()
    if one.semantics is Semantics.SAME
    and one.apply
    and not one.needs_ranks
    and not one.is_for_chains  # alone.py has a model with a chain
]
WATCHED = (
    "torch.nn", "torch.optim", "torch.utils.checkpoint", "torch.autograd", "torch.amp",
    "torch.functional", "transformers.loss", "transformers.models", "transformers.integrations",
)  # fmt: skip


class Fault(Exception):
    """What a test puts in the way."""


def make(name):
    """A model in the state in which its training begins, and its optimizer."""
    torch.manual_seed(1)
    made = MODELS[name]()
    with torch.no_grad():
        made.loss(made.model.eval())  # transformers sets hooks of its own up in the first call
    made.model.train()
    optimizer = torch.optim.AdamW(made.model.parameters(), lr=RATE)
    torch.manual_seed(2)
    return made, optimizer


def step(made, optimizer):
    """One step: the loss, and the gradients as far as they are there at its end."""
    optimizer.zero_grad()
    loss = made.loss(made.model)
    loss.backward()
    # Read past techniques that refuse programs which read gradients.
    gradients = [torch.Tensor.grad.__get__(parameter) for parameter in made.model.parameters()]
    copies = [None if one is None else one.clone() for one in gradients]
    optimizer.step()
    return loss.detach().clone(), copies


def train(made, optimizer):
    """What came of some steps: a list of values a step, by name."""
    found = []
    for _ in range(STEPS):
        loss, gradients = step(made, optimizer)
        found.append(
            {
                "loss": [loss],
                "gradients": gradients,
                "random numbers": [torch.get_rng_state()],
                "state_dict": [one.clone() for one in made.model.state_dict().values()],
            }
        )
    return found, list(made.model.state_dict())


def compare(found, expected, *, is_close):
    """Where two trainings differ: "" nowhere."""
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        for name in one:
            for ours, theirs in zip(one[name], other[name], strict=True):
                is_freed = name == "gradients" and (ours is None or theirs is None)
                if not is_freed and not same(ours, theirs, name if is_close else None):
                    return f"{name} of step {number}"
    return ""


def same(ours, theirs, name):
    """Whether two tensors are equal; where a name is given, up to the order of sums."""
    if name is None or not ours.is_floating_point():
        return torch.equal(ours, theirs)
    # AdamW makes a whole step of a gradient that is zero but for its rounding.
    least = 2 * RATE * STEPS if name == "state_dict" else 1e-6
    scale = theirs.abs().max().item() if theirs.numel() else 0.0
    return bool(((ours - theirs).abs() <= 1e-3 * scale + least).all())


def owners():
    """The namespaces that a technique could leave something in."""
    for name, module in list(sys.modules.items()):
        if name.startswith(WATCHED) and module is not None:
            yield name, module
            for kind in list(vars(module).values()):
                if isinstance(kind, type) and kind.__module__ == name:
                    yield f"{name}.{kind.__qualname__}", kind


def marks(made, optimizer):
    """All that is on the model, its optimizer and torch beside values, by identity."""
    found = {
        (name, key): id(value)
        for name, owner in owners()
        for key, value in list(vars(owner).items())
        if callable(value) and not key.startswith("__")
    }
    found["call"] = id(nn.Module.__call__), id(torch.optim.Optimizer.__init__)
    for name, module in made.model.named_modules():
        for key, value in vars(module).items():
            is_hooks = "hooks" in key and isinstance(value, dict)
            found["module", name, key] = len(value) if is_hooks else getattr(value, "__func__", 0)
    for name, one in made.model.named_parameters():
        hooks = one._backward_hooks, getattr(one, "_post_accumulate_grad_hooks", None)
        found["parameter", name] = [len(some or ()) for some in hooks]
    for number, group in enumerate(optimizer.param_groups):
        found["group", number] = {key: value for key, value in group.items() if key != "params"}
    found["optimizer"] = sorted(vars(optimizer)), type(optimizer), repr(optimizer.defaults)
    found["hooks"] = [
        len(value) for key, value in sorted(vars(optimizer).items()) if key.endswith("hooks")
    ]
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    found["saved tensors"] = None if top is None else top(False)
    return found


def left_over(made, optimizer, before):
    """What was changed and not put back."""
    after = marks(made, optimizer)
    # Modules that were imported meanwhile bring names of their own.
    return [str(key) for key, value in before.items() if after.get(key, value) != value] + [
        str(key) for key in after.keys() - before.keys() if key[0] in {"module", "parameter"}
    ]


def plan_of(actions, made, optimizer):
    """A plan for a model as it is."""
    return Plan(tuple(actions), describe_program(made.model, optimizer))


def modules_of(technique, made):
    """What a technique can be applied to in a model."""
    if technique.place is not Place.MODULES:
        return ()
    return made.mlps if technique.name == "tiled_mlp" else made.blocks


def settings_of(technique, draw):
    return draw.choice([{}, *technique.variants])


def lone_actions(made):
    """Each technique by itself, on all the modules that it is for."""
    for technique in OURS:
        modules = modules_of(technique, made)
        if modules or technique.place is not Place.MODULES:
            for settings in ({}, *technique.variants):
                yield [Action(technique.name, modules, settings)]


def drawn_actions(made, optimizer, draw):
    """Several techniques, each on some modules, of which none excludes another."""
    actions = []
    techniques = draw.sample(OURS, len(OURS))
    for technique in techniques[: draw.randint(2, 5)]:
        modules = modules_of(technique, made)
        if technique.place is Place.MODULES:
            if not modules:
                continue
            modules = tuple(draw.sample(modules, draw.randint(1, len(modules))))
        action = Action(technique.name, modules, settings_of(technique, draw))
        try:
            with plan_of([*actions, action], made, optimizer).applied(made.model, optimizer):
                made.loss(made.model).backward()  # some is found out only then
            actions.append(action)
            made.model.zero_grad()
        except PlanError:  # it is not for this model, or does not go with another
            continue
    return actions


def judge(name, actions, expected):
    """What came of a model under a plan."""
    made, optimizer = make(name)
    before = marks(made, optimizer)
    keys = list(made.model.state_dict())
    try:
        with plan_of(actions, made, optimizer).applied(made.model, optimizer):
            found, keys_under = train(made, optimizer)
    except PlanError as error:
        left = left_over(made, optimizer, before)
        return f"left over: {left[:3]}" if left else f"refused: {error}"
    except Exception as error:
        return f"raised: {type(error).__name__}: {error}"
    left = left_over(made, optimizer, before)
    if left:
        return f"left over: {left[:3]}"
    if keys_under != keys or list(made.model.state_dict()) != keys:
        return "other keys in the state_dict"
    is_close = any(TECHNIQUES[one.technique].reorders for one in actions)
    return compare(found, expected, is_close=is_close) or ("close" if is_close else "equal")


def break_it(made, optimizer, draw, changes):
    """Puts an exception in the way of a training; says where."""
    where = draw.choice(["forward", "backward", "hook", "apply", "step"])
    leaves = [one for one in made.model.modules() if not list(one.children())]
    if where == "forward":
        leaf = draw.choice(leaves)
        changes.set(leaf, "forward", fails)
    elif where == "backward":
        parameters = [one for one in made.model.parameters() if one.requires_grad]
        changes.hook(draw.choice(parameters).register_hook(fails))
    elif where == "hook":
        changes.hook(draw.choice(leaves).register_forward_hook(fails))
    elif where == "step":
        changes.hook(optimizer.register_step_pre_hook(fails))
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


def fails(*_, **__):
    raise Fault


def judge_fault(name, actions, draw):
    """What is left of a plan after an exception under it."""
    made, optimizer = make(name)
    before = marks(made, optimizer)
    with Changes() as changes:
        where = break_it(made, optimizer, draw, changes)
        try:
            with plan_of(actions, made, optimizer).applied(made.model, optimizer):
                train(made, optimizer)
            where = f"{where}, never reached"
        except Fault:
            pass
        except PlanError as error:
            where = f"refused: {error}"
    left = left_over(made, optimizer, before)
    if left:
        return f"{where}: left over: {left[:3]}"
    other, other_optimizer = make(name)
    other.model.load_state_dict(made.model.state_dict())
    other_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # it shares tensors
    torch.manual_seed(3)
    ours = train(made, optimizer)[0]
    torch.manual_seed(3)
    differs = compare(ours, train(other, other_optimizer)[0], is_close=False)
    return f"{where}: {differs} after it" if differs else f"equal after {where}"


def main():
    kind, *words = sys.argv[1:]
    numbers = range(int(words.pop(0)), int(words.pop(0))) if kind != "alone" else range(1)
    torch.set_num_threads(1)
    found = []
    for name in words or MODELS:
        expected = train(*make(name))[0]
        for number in numbers:
            draw = random.Random(f"{name} {number}")
            cases = [] if kind == "alone" else [drawn_actions(*make(name), draw)]
            for actions in lone_actions(make(name)[0]) if kind == "alone" else cases:
                result = (
                    judge_fault(name, actions, draw)
                    if kind == "faults"
                    else judge(name, actions, expected)
                )
                words_of = [
                    {"technique": a.technique, "modules": a.modules, "settings": a.settings}
                    for a in actions
                ]
                found.append({"model": name, "actions": words_of, "result": result})
    print(json.dumps(found))


main()
