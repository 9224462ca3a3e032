"""Trainings that are guarded in other ways than the steps of cases.py: each optimizer, averages, a
model called in loops of several kinds, a batch in parts, a request, shards. `KINDS` has them.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import contract
import parts
import shards
import torch
import torch.distributed as dist
from answers import RUNG, Service, prompts
from cases import CASES
from ends import Kind, Run, Unguarded
from torch import nn
from torch.nn import functional as F
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


def of_function(function, make, kind, numbers=None, *, is_guarded=True):
    """Two steps of a function, with errors in the second."""
    torch.manual_seed(1)
    model, faults = make(), kind(numbers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(*batches):
        optimizer.zero_grad()
        function(model, *batches)
        optimizer.step()

    guard = ullage.guard(model, optimizer) if is_guarded else Unguarded()
    with guard:
        for each in (nullcontext(), faults):
            batches = [(torch.randn(2, 3, 8, 8), torch.randint(5, (2,))) for _ in range(2)]
            with each:
                guard.step(step, *batches)
    state = {name: each.clone() for name, each in model.state_dict().items()}
    for index, each in enumerate(optimizer.state.values()):
        state |= {f"{index} {key}": value.clone() for key, value in each.items()}
    return Run({**state, "generator": torch.get_rng_state()}, faults, guard.num_recoveries)


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


def a_step(model, batch, _):
    """Forward and backward."""
    F.cross_entropy(model(batch[0]), batch[1]).backward()


def two_calls_of_one_backward(model, first, second):
    """The gradients of both are summed before they are added."""
    one, two = model(first[0]), model(second[0])
    (F.cross_entropy(one, first[1]) + F.cross_entropy(two, second[1])).backward()


def a_graph_that_is_kept(model, batch, _):
    """Two losses of one call, one backward after the other."""
    logits = model(batch[0])
    F.cross_entropy(logits, batch[1]).backward(retain_graph=True)
    logits.square().mean().backward()


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


def outputs_of_all_kinds(model, batch, _):
    """Dataclass, dict, list, the same tensor twice, an input, changed in place by the program."""
    output = model(batch[0])
    assert output.rest["logits"][1] is output.hidden
    assert output.rest["targets"][0] is batch[0]
    logits = output.rest["logits"][0]
    logits /= 2.0
    (F.cross_entropy(logits, batch[1]) + output.hidden.mean()).backward()


def an_evaluation_between(model, batch, _):
    """Calls without gradients, in evaluation mode, between a call and its backward."""
    logits = model(batch[0])
    with torch.no_grad():
        model.eval()
        model(batch[0])
        model.train()
    torch.rand(3)
    F.cross_entropy(logits, batch[1]).backward()


def gradients_of_some_parameters(model, batch, _):
    """torch.autograd.grad alone."""
    loss = F.cross_entropy(model(batch[0]), batch[1])
    parameters = [*model.head.parameters()]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient


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
        function.__name__.replace("_", " "): Kind(partial(of_function, function, make, Faults))
        for function, make in (
            (two_calls_of_one_backward, ConvNet), (a_graph_that_is_kept, ConvNet),
            (outputs_of_all_kinds, Structured), (an_evaluation_between, ConvNet),
            (gradients_of_some_parameters, ConvNet),
        )
    },
    "errors of a library": Kind(partial(of_function, a_step, ConvNet, Others)),
    "mistakes": Kind(partial(of_function, a_step, ConvNet, Mistakes)),
}  # fmt: skip
