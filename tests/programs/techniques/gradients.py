"""Training loops that use gradients in their own ways, under techniques that free these early.

The last line is a document: for each loop and technique "equal", the refusal, or "different".
"""

import json

import torch
from torch import nn

from ullage.errors import PlanError
from ullage.techniques.applying.apply import describe_program
from ullage.techniques.plan import Plan
from ullage.techniques.technique import Action


def backward(model, part=slice(None)):
    model[part](torch.randn(3, 4, dtype=torch.float64)).square().mean().backward()


def usual(model, optimizer):
    optimizer.zero_grad()
    backward(model)
    optimizer.step()


def zeroed_by_the_model(model, optimizer):
    model.zero_grad()
    backward(model)
    optimizer.step()


def zeroed_by_parts(model, optimizer):
    model[0].zero_grad()
    model[1:].zero_grad()
    backward(model)
    optimizer.step()


def zeroed_by_hand(model, optimizer):
    for one in model.parameters():
        one.grad = None
    backward(model)
    optimizer.step()


def zeroed_in_place(model, optimizer):
    """Where no backward comes the optimizer steps by zeros."""
    for part in (slice(None), slice(1)):
        optimizer.zero_grad(set_to_none=False)
        backward(model, part)
        optimizer.step()


def zeroed_in_place_by_the_model(model, optimizer):
    for part in (slice(None), slice(1)):
        model.zero_grad(set_to_none=False)
        backward(model, part)
        optimizer.step()


def by_closure(model, optimizer):
    def closure():
        optimizer.zero_grad()
        backward(model)

    optimizer.step(closure)


def never_zeroed(model, optimizer):
    backward(model)
    optimizer.step()


def zeroed_in_part(model, optimizer):
    model[0].zero_grad()
    backward(model)
    optimizer.step()


def zeroed_by_hand_in_place(model, optimizer):
    for one in model.parameters():
        if one.grad is not None:
            one.grad.zero_()
    backward(model)
    optimizer.step()


def read_after_the_step(model, optimizer):
    usual(model, optimizer)
    norms = [one.grad.norm() for one in model.parameters() if one.grad is not None]
    with torch.no_grad():
        model[0].weight.mul_(1 + sum(norms))


def stepped_twice(model, optimizer):
    usual(model, optimizer)
    optimizer.step()


def by_two_optimizers(model, optimizer):
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def scaled_before_the_step(model, optimizer):
    optimizer.zero_grad()
    backward(model)
    for one in model.parameters():
        if one.grad is not None:
            one.grad.mul_(0.1)
    optimizer.step()


def a_step_left_out(model, optimizer):
    optimizer.zero_grad()
    backward(model)
    if len(model.losses) % 2:
        optimizer.step()
    model.losses.append(1)


def accumulated(model, optimizer):
    optimizer.zero_grad()
    backward(model)
    backward(model)
    optimizer.step()


def rate_set_before_the_step(model, optimizer):
    optimizer.zero_grad()
    backward(model)
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    optimizer.step()


def decayed_before_the_step(model, optimizer):
    optimizer.zero_grad()
    backward(model)
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(0.9)
    optimizer.step()


def evaluated_before_the_step(model, optimizer):
    optimizer.zero_grad()
    backward(model)
    with torch.no_grad():
        value = model(torch.ones(1, 4, dtype=torch.float64)).mean()
    optimizer.step()
    with torch.no_grad():
        model[0].weight.add_(value)


def train(loop, technique):
    """The parameters after some steps, or why not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 8), nn.Linear(8, 4)).double()
    model.losses = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    actions = () if technique is None else (Action(technique),)
    try:
        with Plan(actions, describe_program(model, optimizer)).applied(model, optimizer):
            for _ in range(3):
                loop(model, optimizer)
    except PlanError as error:
        return str(error)
    return [one.detach().clone() for one in model.parameters()]


def main():
    torch.set_num_threads(1)
    loops = [
        one
        for one in globals().values()
        if getattr(one, "__module__", "") == "__main__"
        and one.__code__.co_varnames[:2] == ("model", "optimizer")
    ]
    found = {}
    for loop in loops:
        expected = train(loop, None)
        for technique in ("free_gradients", "optimizer_in_backward"):
            ours = train(loop, technique)
            is_equal = not isinstance(ours, str) and all(map(torch.equal, ours, expected))
            said = ours if isinstance(ours, str) else "equal" if is_equal else "different"
            found[f"{loop.__name__}, {technique}"] = said
    print(json.dumps(found))


main()
