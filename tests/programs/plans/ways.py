"""The ways of a training step, and optimizers: `WAYS[name](made, optimizer, batch)` is the loss.

Some ways use gradients as a technique that frees them early cannot know.
"""

import torch
from torch import nn

# torch changes the class of an optimizer when it makes its first: no plan is to be blamed for it.
torch.optim.SGD([torch.zeros(1)], lr=1.0)


def usual(made, optimizer, batch):
    optimizer.zero_grad()
    loss = made.loss(made.model, batch)
    loss.backward()
    optimizer.step()
    return loss


def zeroed_late(made, optimizer, batch):
    loss = made.loss(made.model, batch)
    made.model.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def zeroed_late_by_the_optimizer(made, optimizer, batch):
    loss = made.loss(made.model, batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def zeroed_in_place(made, optimizer, batch):
    optimizer.zero_grad(set_to_none=False)
    loss = made.loss(made.model, batch)
    loss.backward()
    optimizer.step()
    return loss


def zeroed_by_the_model(made, optimizer, batch):
    made.model.zero_grad()
    loss = made.loss(made.model, batch)
    loss.backward()
    optimizer.step()
    return loss


def zeroed_by_hand(made, optimizer, batch):
    for one in made.model.parameters():
        one.grad = None
    loss = made.loss(made.model, batch)
    loss.backward()
    optimizer.step()
    return loss


def zeroed_by_hand_in_place(made, optimizer, batch):
    for one in made.model.parameters():
        if one.grad is not None:
            one.grad.zero_()
    loss = made.loss(made.model, batch)
    loss.backward()
    optimizer.step()
    return loss


def zeroed_by_parts(made, optimizer, batch):
    """Of a model that is a sequence, as in the next three."""
    made.model[0].zero_grad()
    made.model[1:].zero_grad()
    loss = made.loss(made.model, batch)
    loss.backward()
    optimizer.step()
    return loss


def zeroed_in_part(made, optimizer, batch):
    made.model[0].zero_grad()
    loss = made.loss(made.model, batch)
    loss.backward()
    optimizer.step()
    return loss


def stepped_by_zeros(made, optimizer, batch):
    """Where no backward comes the optimizer steps by zeros."""
    for part in (slice(None), slice(1)):
        optimizer.zero_grad(set_to_none=False)
        loss = made.loss(made.model[part], batch)
        loss.backward()
        optimizer.step()
    return loss


def stepped_by_zeros_of_the_model(made, optimizer, batch):
    for part in (slice(None), slice(1)):
        made.model.zero_grad(set_to_none=False)
        loss = made.loss(made.model[part], batch)
        loss.backward()
        optimizer.step()
    return loss


def never_zeroed(made, optimizer, batch):
    loss = made.loss(made.model, batch)
    loss.backward()
    optimizer.step()
    return loss


def by_closure(made, optimizer, batch):
    def closure():
        optimizer.zero_grad()
        loss = made.loss(made.model, batch)
        loss.backward()
        return loss

    return optimizer.step(closure)


def by_closure_of_the_loss(made, optimizer, batch):
    optimizer.zero_grad()
    loss = made.loss(made.model, batch)
    loss.backward()
    optimizer.step(lambda: loss)
    return loss


def clipped(made, optimizer, batch):
    optimizer.zero_grad()
    loss = made.loss(made.model, batch)
    loss.backward()
    nn.utils.clip_grad_norm_(made.model.parameters(), 0.1)
    optimizer.step()
    return loss


def clipped_by_value(made, optimizer, batch):
    optimizer.zero_grad()
    loss = made.loss(made.model, batch)
    loss.backward()
    nn.utils.clip_grad_value_(made.model.parameters(), 1.0)
    optimizer.step()
    return loss


def scaled(made, optimizer, batch):
    optimizer.zero_grad()
    loss = made.loss(made.model, batch)
    torch.amp.GradScaler(loss.device.type).scale(loss).backward()
    optimizer.step()
    return loss


def autocast(made, optimizer, batch):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = made.loss(made.model, batch)
    loss.backward()
    optimizer.step()
    return loss


def accumulated(made, optimizer, batch):
    optimizer.zero_grad()
    loss = made.loss(made.model, batch) / 2
    loss.backward()
    more = made.loss(made.model, made.batch()) / 2
    more.backward()
    optimizer.step()
    return loss + more


def read_after(made, optimizer, batch):
    """The next steps are shorter where gradients were large."""
    loss = usual(made, optimizer, batch)
    held = [one.grad for one in made.model.parameters() if one.grad is not None]
    with torch.no_grad():
        for one in made.model.parameters():
            one.mul_(1 - 1e-3 * sum(gradient.norm() for gradient in held))
    return loss


def stepped_twice(made, optimizer, batch):
    loss = usual(made, optimizer, batch)
    optimizer.step()
    return loss


def by_two_optimizers(made, optimizer, batch):
    loss = usual(made, optimizer, batch)
    torch.optim.SGD(made.model.parameters(), lr=0.1).step()
    return loss


def scaled_before_the_step(made, optimizer, batch):
    optimizer.zero_grad()
    loss = made.loss(made.model, batch)
    loss.backward()
    for one in made.model.parameters():
        if one.grad is not None:
            one.grad.mul_(0.1)
    optimizer.step()
    return loss


def a_step_left_out(made, optimizer, batch):
    """Every other."""
    optimizer.zero_grad()
    loss = made.loss(made.model, batch)
    loss.backward()
    if len(made.model.losses) % 2:
        optimizer.step()
    made.model.losses.append(1)
    return loss


def decayed_between(made, optimizer, batch):
    optimizer.zero_grad()
    loss = made.loss(made.model, batch)
    loss.backward()
    for group in optimizer.param_groups:
        group["lr"] *= 0.9
    optimizer.step()
    return loss


def weights_decayed_between(made, optimizer, batch):
    optimizer.zero_grad()
    loss = made.loss(made.model, batch)
    loss.backward()
    with torch.no_grad():
        for one in made.model.parameters():
            one.mul_(0.9)
    optimizer.step()
    return loss


def evaluated_between(made, optimizer, batch):
    optimizer.zero_grad()
    loss = made.loss(made.model, batch)
    loss.backward()
    with torch.no_grad():
        value = made.loss(made.model, batch)
    optimizer.step()
    with torch.no_grad():
        next(made.model.parameters()).add_(value)
    return loss


WAYS = {
    name: one
    for name, one in globals().items()
    if getattr(one, "__code__", None) and one.__code__.co_varnames[:1] == ("made",)
}
OPTIMIZERS = {
    "AdamW": lambda held, rate: torch.optim.AdamW(held, lr=rate),
    "SGD": lambda held, rate: torch.optim.SGD(held, lr=rate, momentum=0.9),
    "RMSprop": lambda held, rate: torch.optim.RMSprop(held, lr=rate / 10),
    "LBFGS": lambda held, rate: torch.optim.LBFGS(held, lr=rate),
}
