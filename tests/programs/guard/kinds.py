"""Trainings that are guarded in other ways than the steps of cases.py: each optimizer, averages, a
model called in loops of several kinds, a batch in parts, a request, shards. `KINDS` has them.
"""

from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from functools import partial

import calls
import contract
import parts
import shards
import torch
import torch.distributed as dist
from answers import RUNG, Service, prompts
from cases import CASES
from ends import Kind, Run, Unguarded
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from training import ConvNet, Faults, Training

import ullage

OPTIMIZERS = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "Adam": {"amsgrad": True, "weight_decay": 0.1},
    "AdamW": {"maximize": True},
    "NAdam": {"weight_decay": 0.1},
    "RAdam": {},
    "Adamax": {"weight_decay": 0.1},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Adagrad": {"lr_decay": 0.1},
    "Adadelta": {"weight_decay": 0.1},
    "ASGD": {"t0": 0},
    "Rprop": {},
    "Adafactor": {"weight_decay": 0.1},
    "Muon": {},
}
WITHOUT_LISTS = ("Muon",)
AVERAGES = {"plain": {}, "moving": {"multi_avg_fn": get_ema_multi_avg_fn(0.9), "use_buffers": True}}
# Of numbers with 64 bits.
ROUNDING = 1e-13


class Net(nn.Module):
    """Three blocks, for the rungs."""

    def __init__(self, *, has_bias):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(3, 3, bias=has_bias)) for _ in range(3))

    def forward(self, x):
        """x and the result are (rows, 3)."""
        for block in self.blocks:
            x = block(x).tanh()
        return x


def of_optimizer(name, kind, numbers=None, *, is_guarded=True):
    """Three steps with errors in the optimizer."""
    torch.manual_seed(1)
    is_list = {} if name in WITHOUT_LISTS else {"foreach": kind == "lists"}
    model = Net(has_bias=name not in WITHOUT_LISTS)
    optimizer = getattr(torch.optim, name)(
        model.parameters(), lr=0.01, **OPTIMIZERS[name], **is_list
    )
    faults = Faults(numbers)

    def step(x):
        model(x).square().sum().backward()
        with faults:
            optimizer.step()

    guard = ullage.guard(model, optimizer) if is_guarded else Unguarded()
    with guard:
        for _ in range(3):
            optimizer.zero_grad()
            guard.step(step, torch.randn(4, 3))
    state = dict(model.state_dict())
    for index, each in enumerate(optimizer.state.values()):
        state |= {f"{index} {key}": value for key, value in each.items()}
    return Run(state, faults, guard.num_recoveries)


def of_average(kind, num_updates, numbers=None, *, is_guarded=True):
    """A step that ends with the update of an average of the weights, with errors in it."""
    program = contract.Program()
    average = AveragedModel(program.model, **AVERAGES[kind])
    for _ in range(num_updates):
        average.update_parameters(program.model)
    faults = Faults(numbers)

    def fn(batch):
        program.fn(batch)
        with faults:
            average.update_parameters(program.model)

    guard = Unguarded()
    if is_guarded:
        guard = ullage.guard(program.model, program.optimizer, averages=[average])
    with guard:
        guard.step(fn, program.draw())
    assert "update_parameters" not in vars(average), "the guard has left its update"
    state = {name: value.clone() for name, value in average.state_dict().items()}
    return Run(state, faults, guard.num_recoveries)


def fused_sgd(numbers=None, *, is_guarded=True):
    """The first step of a fused SGD with two groups, and errors in it."""

    def make(parameters):
        parameters = list(parameters)
        groups = [{"params": parameters[:3]}, {"params": parameters[-2:]}]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9, fused=True)

    program, faults = contract.Program(make), Faults(numbers)

    def fn(batch):
        program.optimizer.zero_grad()
        program.loss(batch).backward()
        with faults:
            program.optimizer.step()

    guard = ullage.guard(program.model, program.optimizer) if is_guarded else Unguarded()
    with guard:
        guard.step(fn, program.draw())
    return Run(program.state(), faults, guard.num_recoveries)


def accumulated(numbers=None, *, is_guarded=True):
    """A later step of two micro-batches."""
    training = Training(CASES["gpt2 accumulated"])
    training.step()
    training.faults = faults = Faults(numbers)
    guard = ullage.guard(training.model, training.optimizer) if is_guarded else Unguarded()
    with guard:
        state = training.state(training.step(guard))
    return Run(state, faults, guard.num_recoveries)


def of_calls(step, make, kind, numbers=None, *, is_guarded=True):
    """Two steps of a script whose model's calls are guarded, with errors in the second."""
    program, faults = calls.Program(make), kind(numbers)
    guard = program.guarded() if is_guarded else Unguarded()
    with redirect_stderr(program.said), guard:
        step(program)
        with faults:
            step(program)
    # Neither the loader nor the loss runs more often than without a guard.
    counts = {"draws": program.num_draws, "losses": program.num_losses}
    return Run(program.state() | counts, faults, guard.num_recoveries)


def in_parts(numbers=None, *, is_guarded=True):
    """A step of a batch that has been split before, with errors in it; unguarded it is whole."""
    program, faults = parts.Program(), Faults(numbers)
    guard = ullage.guard(program.model, program.optimizer) if is_guarded else Unguarded()
    with guard:
        for has_errors in (False, True):
            batch = program.batch()
            program.faults = faults if has_errors else nullcontext()
            if is_guarded:
                program.model.limit = parts.ROWS // 2
                guard.step_in_parts(program.fn, batch, split=parts.BY_TOKENS)
            else:
                program.fn([(batch, 1.0)])
    # The first recovery is that which splits the batch.
    return Run(
        {"state": program.state()}, faults, guard.num_recoveries and guard.num_recoveries - 1
    )


def rounds(state, expected):
    """Names of what differs by more than rounding."""
    return [
        name for name, value in expected.items()
        if (state[name] - value).abs().max() >= ROUNDING * value.abs().max()
    ]  # fmt: skip


def of_shards(kind, numbers=None, *, is_guarded=True):
    """A later step of an optimizer with sharded parameters, with errors in it."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return shards.step(numbers, is_guarded, **{kind: True})


def sampled_request(numbers=None, *, is_guarded=True):
    """A request that draws its tokens."""
    service, faults = Service(), Faults(numbers)
    (prompt,) = prompts()
    torch.manual_seed(3)
    guard = ullage.guard_inference(service.model, rungs=[RUNG]) if is_guarded else Unguarded()
    answer = guard.answer if is_guarded else guard.step
    with guard, faults:
        tokens = answer(service.reply, prompt, samples=True)
    assert service.caches in (["full"], ["full", "lean"]), service.caches
    state = {"tokens": tokens, "generator": torch.get_rng_state()}
    return Run(state, faults, guard.num_recoveries)


class Others(Faults):
    """Errors in the words of a library, as cuBLAS has them."""

    words = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"

    def error(self):
        """What is raised."""
        return RuntimeError(self.words)


class Mistakes(Others):
    """Errors that are not about memory."""

    words = "CUDA error: device-side assert triggered"


def two_calls_of_one_backward(program):
    """The gradients of both are summed before they are added."""
    first, second = program.draw(), program.draw()
    one, two = program.model(first[0]), program.model(second[0])
    (program.loss(one, first[1]) + program.loss(two, second[1])).backward()
    program.optimizer.step()


def a_graph_that_is_kept(program):
    """Two losses of one call, one backward after the other."""
    inputs, targets = program.draw()
    logits = program.model(inputs)
    program.loss(logits, targets).backward(retain_graph=True)
    logits.square().mean().backward()
    program.optimizer.step()
    program.optimizer.zero_grad()


@dataclass
class Output:
    """What some models return."""

    hidden: torch.Tensor
    rest: dict
    name: str = "output"


class Structured(ConvNet):
    """Returns an object with tensors within dicts and lists, one of them twice."""

    def forward(self, images):
        """An Output."""
        logits = super().forward(images)
        hidden = logits * 2
        return Output(hidden, {"logits": [logits, hidden], "count": 3, "targets": (images,)})


def outputs_of_all_kinds(program):
    """Dataclass, dict, list, the same tensor twice, an input, changed in place by the script."""
    inputs, targets = program.draw()
    output = program.model(inputs)
    assert output.rest["logits"][1] is output.hidden
    assert output.rest["targets"][0] is inputs
    logits = output.rest["logits"][0]
    logits /= 2.0
    (program.loss(logits, targets) + output.hidden.mean()).backward()
    program.optimizer.step()


def an_evaluation_between(program):
    """Calls without gradients, in evaluation mode, between a call and its backward."""
    inputs, targets = program.draw()
    logits = program.model(inputs)
    with torch.no_grad():
        program.model.eval()
        program.model(inputs)
        program.model.train()
    torch.rand(3)
    program.loss(logits, targets).backward()
    program.optimizer.step()


def gradients_of_some_parameters(program):
    """torch.autograd.grad alone, which goes past the guard."""
    inputs, targets = program.draw()
    loss = program.loss(program.model(inputs), targets)
    parameters = [*program.model.head.parameters()]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    program.optimizer.step()


KINDS = {
    **{
        f"optimizer {name} {kind}": Kind(partial(of_optimizer, name, kind), at_all=True)
        for name in OPTIMIZERS
        for kind in (("loop",) if name in WITHOUT_LISTS else ("lists", "loop"))
    },
    **{
        f"average {name} {num}": Kind(partial(of_average, name, num), at_all=True)
        for name in AVERAGES
        for num in (0, 1)
    },
    **{
        f"shards {kind}": Kind(partial(of_shards, kind), at_all=True)
        for kind in ("foreach", "fused")
    },
    "fused SGD, twice": Kind(fused_sgd, at_all=True, again=(1, 2, 3, 4, 5)),
    "accumulated, twice": Kind(accumulated, at_all=True, again=(5, 90, 175)),
    "in parts": Kind(in_parts, differ=rounds),
    "request": Kind(sampled_request, at_all=True),
    **{
        f"calls {step.__name__.replace('_', ' ')}": Kind(partial(of_calls, step, make, Faults))
        for step, make in (
            (two_calls_of_one_backward, ConvNet), (a_graph_that_is_kept, ConvNet),
            (outputs_of_all_kinds, Structured), (an_evaluation_between, ConvNet),
            (gradients_of_some_parameters, ConvNet),
        )
    },
    "calls of a library": Kind(partial(of_calls, calls.train_once, ConvNet, Others)),
    "calls with mistakes": Kind(partial(of_calls, calls.train_once, ConvNet, Mistakes)),
}  # fmt: skip
