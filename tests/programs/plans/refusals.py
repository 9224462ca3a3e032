"""What a plan says, by hand and on the CPU, where it cannot be applied or would not be exact.

Prints a document: for each case the error, or null.
"""

import json

import torch
from blocks import Stack, batch
from torch import nn

from ullage.act.techniques import catalog
from ullage.act.techniques.applying.apply import describe_program
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action, Place, Semantics, Technique
from ullage.ground.errors import PlanError


class Around(nn.Module):
    """Something before and after a layer, which is what a plan checkpoints."""

    def __init__(self, layer):
        super().__init__()
        self.before = nn.Linear(64, 64)
        self.layer = layer

    def forward(self, x):
        return self.layer(self.before(x)).square().mean()


class InPlace(nn.Linear):
    """Changes what it gets."""

    def forward(self, x):
        return super().forward(x.add_(1))


class Counts(nn.Linear):
    """Counts its calls in a buffer."""

    def __init__(self):
        super().__init__(64, 64)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


def checkpointed(layer):
    """A model whose layer is checkpointed, and its optimizer."""
    model = Around(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = Plan((Action("checkpoint", ("layer",)),), describe_program(model, optimizer))
    return plan.apply(model, optimizer)


def trains(layer):
    """A step under checkpointing."""
    model, _ = checkpointed(layer)
    model(batch()).backward()


def nothing_is_wrong():
    trains(nn.Linear(64, 64))


def input_changed_in_place():
    trains(InPlace(64, 64))


def buffer_changed():
    trains(Counts())


def spectral_norm():
    trains(nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64)))


def parameter_changed_before_backward():
    model, optimizer = checkpointed(nn.Linear(64, 64))
    first, second = model(batch()), model(batch())
    first.backward()
    optimizer.step()
    second.backward()


def switched_to_evaluation_before_backward():
    model, _ = checkpointed(nn.Dropout())
    loss = model(batch())
    model.eval()
    loss.backward()


def batch_norm_in_evaluation():
    trains(nn.BatchNorm1d(64).eval())


def applied_twice():
    model = Stack()
    plan = Plan((Action("checkpoint", ("blocks.0",)),), describe_program(model, None))
    with plan.applied(model):
        plan.apply(nn.Sequential(model)[0])


def applied_again_after_its_end():
    model = Stack()
    plan = Plan((Action("checkpoint", ("blocks.0",)),), describe_program(model, None))
    for _ in range(2):
        with plan.applied(model):
            model(batch()).sum().backward()


def module_not_there():
    model = Stack()
    Plan((Action("checkpoint", ("block.0",)),), describe_program(model, None)).apply(model)


def another_model():
    plan = Plan((), describe_program(Stack(), None))
    plan.apply(nn.Linear(1, 1))


def several_optimizers():
    model = Stack()
    halves = list(model.blocks[:2].parameters()), list(model.blocks[2:].parameters())
    optimizers = [torch.optim.AdamW(halves[0]), torch.optim.SGD(halves[1])]
    plan = Plan((Action("checkpoint", ("blocks.0",)),), describe_program(model, optimizers))
    assert plan.made_for.optimizer == "AdamW, SGD"
    with plan.applied(model, optimizers):
        plan_of_one = Plan((), describe_program(model, optimizers[0]))
    plan_of_one.apply(model, optimizers)


def needs(requirement):
    """A technique with a need is applied."""
    technique = Technique(
        "needy", "needs", Semantics.SAME, Place.PROGRAM, "https://example.org",
        apply=lambda _target, _action: None, needs=(requirement,),
    )  # fmt: skip
    catalog.TECHNIQUES["needy"] = technique
    model = Stack()
    Plan((Action("needy"),), describe_program(model, None)).apply(model)


def needs_what_is_not_installed():
    needs("no-such-package")


def needs_a_newer_torch():
    needs("torch>=99.1")


def needs_this_torch():
    needs("torch>=2.1")


def main():
    found = {}
    cases = [one for one in globals().values() if getattr(one, "__code__", None)]
    for case in cases:
        if case.__code__.co_argcount or case is main or case.__module__ != "__main__":
            continue
        try:
            case()
            found[case.__name__] = None
        except PlanError as error:
            found[case.__name__] = str(error)
    print(json.dumps(found))


main()
