"""Trains programs under plans and without, and says by how much the trainings are apart.

same_training.py cpu '[{"program": "gpt2", "actions": [{"technique": "checkpoint", ...}]}, ...]'

A case names a program (catalogue.py), the way of its steps and its optimizer (ways.py), and the
actions of a plan, whose modules may be "*blocks", "*mlps" or "*chains" of the program. Some steps
come under the plan, and some more after it was undone. The last line of the output is a list, a
document a case: the refusal; or how far losses, gradients, parameters and buffers of any step are
off, whether all is equal bit for bit, random numbers and optimizer states too, and what the plan
has left over. On the phantom ("cuda") it is instead what a step requests at most, and what is kept.
"""

import functools
import gc
import json
import math
import random
import sys

import numpy as np
import torch
import torch._dynamo
from catalogue import make_program
from torch import nn
from ways import OPTIMIZERS, WAYS

from ullage.act.techniques.applying.apply import describe_program
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action
from ullage.ground.errors import PlanError

# It changes torch.optim when it is first used, whichever technique uses it.
torch._dynamo.eval_frame.TorchPatcher.patch()
STEPS, AFTER = 3, 2
WATCHED = (
    "torch.nn", "torch.optim", "torch.utils.checkpoint", "torch.autograd", "torch.amp",
    "torch.functional", "transformers.loss", "transformers.models", "transformers.integrations",
)  # fmt: skip


class Training:
    """A program in the state in which its training begins.

    Attributes:
        made: its model, batches and loss.
        optimizer: a scheduler changes its rate.
    """

    def __init__(self, case, device="cpu"):
        self.made = make_program(case, device)
        self.way = WAYS[case.get("way", "usual")]
        make_optimizer = OPTIMIZERS[case.get("optimizer", "AdamW")]
        self.optimizer = make_optimizer(self.made.model.parameters(), self.made.rate)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.optimizer.zero_grad()
        if case.get("optimizer") != "LBFGS":
            self.optimizer.step()  # the scheduler's count of steps is on the optimizer from now on
        self.seed(2)

    def seed(self, seed):
        """Begins all random numbers anew."""
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)

    def step(self):
        """A step, and all that is there after it, by name: lists of tensors, and other values."""
        loss = self.way(self.made, self.optimizer, self.made.batch())
        self.scheduler.step()
        # Read past techniques that refuse programs which read gradients.
        gradients = [torch.Tensor.grad.__get__(one) for one in self.made.model.parameters()]
        numpy_state = [str(part) for part in np.random.get_state()]
        return {
            "losses": [loss.detach().clone()],
            "gradients": [None if one is None else one.clone() for one in gradients],
            "state": [one.clone() for one in self.made.model.state_dict().values()],
            "more": [one.clone() for one in self.made.more(self.made.model)],
            "random numbers": [torch.get_rng_state(), random.getstate(), numpy_state],
        }

    def loss(self):
        """That of a batch."""
        return self.made.loss(self.made.model, self.made.batch())

    def steps(self, count):
        """Several."""
        return [self.step() for _ in range(count)]

    def states(self):
        """Those of the optimizer, parameter by parameter."""
        held = [self.optimizer.state.get(one, {}) for one in self.made.model.parameters()]
        return [part for one in held for _, part in sorted(one.items(), key=lambda pair: pair[0])]

    def plan(self, actions):
        """A plan of documents of actions."""
        made_for = describe_program(self.made.model, self.optimizer)
        return Plan(tuple(self.action(one) for one in actions), made_for)

    def action(self, document):
        """An action, with the modules that the program has."""
        given = document.get("modules", [])
        modules = [
            name
            for one in given
            for name in (getattr(self.made, one[1:]) if one.startswith("*") else [one])
        ]
        return Action(document["technique"], tuple(modules), document.get("settings", {}))

    def applied(self, actions):
        """A context under a plan."""
        return self.plan(actions).applied(self.made.model, self.optimizer)


def owners():
    """The namespaces that a technique could leave something in."""
    for name, module in list(sys.modules.items()):
        if name.startswith(WATCHED) and module is not None:
            yield name, module
            for kind in list(vars(module).values()):
                if isinstance(kind, type) and kind.__module__ == name:
                    yield f"{name}.{kind.__qualname__}", kind


def marks(training):
    """All that is on the model, its optimizer and torch beside values, by identity."""
    model, optimizer = training.made.model, training.optimizer
    found = {
        (name, key): id(value)
        for name, owner in owners()
        for key, value in list(vars(owner).items())
        if callable(value) and not key.startswith("__")
    }
    found["call"] = id(nn.Module.__call__), id(torch.optim.Optimizer.__init__)
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            is_hooks = "hooks" in key and isinstance(value, dict)
            found["module", name, key] = len(value) if is_hooks else getattr(value, "__func__", 0)
    for name, one in model.named_parameters():
        hooks = one._backward_hooks, getattr(one, "_post_accumulate_grad_hooks", None)
        found["parameter", name] = [len(some or ()) for some in hooks]
    for number, group in enumerate(optimizer.param_groups):
        given = {key: value for key, value in group.items() if key not in {"params", "lr"}}
        found["group", number] = given
    found["optimizer"] = sorted(vars(optimizer)), type(optimizer), repr(optimizer.defaults)
    found["hooks"] = [
        len(value) for key, value in sorted(vars(optimizer).items()) if key.endswith("hooks")
    ]
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    found["saved tensors"] = None if top is None else top(False)
    return found


def left_over(training, before):
    """What was changed and not put back."""
    after = marks(training)
    # Modules that were imported meanwhile bring names of their own.
    return [str(key) for key, value in before.items() if after.get(key, value) != value] + [
        str(key) for key in after.keys() - before.keys() if key[0] in {"module", "parameter"}
    ]


@functools.cache
def unplanned(text):
    """The steps of a case without its actions, and the states of its optimizer."""
    training = Training(json.loads(text))
    return training.steps(STEPS + AFTER), training.states()


def same_numbers(found, expected):
    """Whether as many random numbers were drawn in each step, of torch, Python and NumPy."""
    pairs = [
        (one["random numbers"], other["random numbers"])
        for one, other in zip(found, expected, strict=True)
    ]
    return all(torch.equal(one[0], other[0]) and one[1:] == other[1:] for one, other in pairs)


def compare(found, expected):
    """How far each kind of value is off, at most; whether the steps are equal bit for bit."""
    off, is_equal = {}, same_numbers(found, expected)
    for ours, theirs in zip(found, expected, strict=True):
        for name in ("losses", "gradients", "state", "more"):
            if len(ours[name]) != len(theirs[name]):
                off[name], is_equal = float("inf"), False
                continue
            for one, other in zip(ours[name], theirs[name], strict=True):
                if name == "gradients" and (one is None or other is None):
                    continue  # it is freed
                if not torch.equal(one, other):
                    is_equal = False
                    off[name] = max(off.get(name, 0.0), distance(one, other, name))
    return off, is_equal


def distance(one, other, name):
    """The largest difference of two tensors, to the largest value of the second."""
    if one.dtype != other.dtype or one.shape != other.shape or not one.is_floating_point():
        return float("inf")
    # In float32 AdamW makes a whole step of a gradient that is zero but for its rounding.
    is_single = one.dtype != torch.float64
    least = (STEPS * 2e-3 if name == "state" else 1e-6) if is_single else 0.0
    scale = max(other.abs().max().item(), 1e-3)
    off = max((one - other).abs().max().item() - least, 0.0) / scale
    return off if math.isfinite(off) else float("inf")


def judge(case):
    """What came of a case on the processor."""
    training = Training(case)
    before, keys = marks(training), list(training.made.model.state_dict())
    try:
        with training.applied(case["actions"]):
            found = training.steps(STEPS)
            keys_under = list(training.made.model.state_dict())
    except PlanError as error:
        return {"refused": str(error), "left over": left_over(training, before)}
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}"}
    left = left_over(training, before)
    found += training.steps(AFTER)
    plain = {name: value for name, value in case.items() if name != "actions"}
    expected, states = unplanned(json.dumps(plain))
    off, is_equal = compare(found, expected)
    pairs = zip(map(torch.as_tensor, training.states()), map(torch.as_tensor, states), strict=True)
    return {
        "off": off,
        "equal": is_equal and all(torch.equal(one.cpu(), other) for one, other in pairs),
        "same random numbers": same_numbers(found, expected),
        "same first loss": torch.equal(found[0]["losses"][0], expected[0]["losses"][0]),
        "same keys": keys_under == keys == list(training.made.model.state_dict()),
        "left over": left,
    }


def measure(case):
    """What a later step requests at most, and what is kept after it, on the phantom."""
    training = Training(case, "cuda")
    before = marks(training)
    try:
        with training.applied(case["actions"]):
            for _ in range(STEPS):
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                training.way(training.made, training.optimizer, training.made.batch())
                training.scheduler.step()
            stats = torch.cuda.memory_stats()
    except PlanError as error:
        return {"refused": str(error), "left over": left_over(training, before)}
    return {
        "peak_bytes": stats["requested_bytes.all.peak"],
        "kept_bytes": stats["requested_bytes.all.current"],
        "left over": left_over(training, before),
    }


def main():
    """Judges the cases, or measures them."""
    device, cases = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    found = []
    for case in cases:
        found.append((judge if device == "cpu" else measure)(case))
        gc.collect()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
