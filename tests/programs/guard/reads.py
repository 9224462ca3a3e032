"""What the guard reads of many tensors at once is what Python reads of each; prints JSON."""

from __future__ import annotations

import json
import random
import weakref
from typing import Any

import torch
from torch.utils import swap_tensors

from ullage.act.guard.reads.counters import Counters, Flags
from ullage.act.guard.reads.native_reads import load_reads
from ullage.act.guard.state.generators import RandomStates
from ullage.ground.errors import GuardError


def make_parameters() -> list[Any]:
    """Parameters with other counters, flags and gradients."""
    parameters = [torch.nn.Parameter(torch.zeros(4, size)) for size in range(1, 6)]
    with torch.no_grad():
        for number, parameter in enumerate(parameters):
            for _ in range(number):
                parameter.add_(1)
    parameters[1].requires_grad_(False)
    return parameters


def read_counters() -> list[Any]:
    """After changes of several kinds: what Python reads, and what is read at once."""
    parameters = make_parameters()
    counters = Counters(parameters)
    parameters[0].data = torch.ones(7)
    parameters[2].detach().add_(1)
    torch._foreach_add_([parameter.detach() for parameter in parameters], 1)
    return [[parameter._version for parameter in parameters], [*counters.read()]]


def read_flags() -> list[Any]:
    """Flags and whether there are gradients, before and after there are."""
    parameters = make_parameters()
    flags = Flags(parameters)
    before = flags.have_gradients()
    parameters[3].grad = torch.zeros_like(parameters[3])
    after = flags.have_gradients()
    parameters[3].grad = None
    required = [bool(flag) for flag in flags.read_requires_grad()]
    expected = [parameter.requires_grad for parameter in parameters]
    return [before, after, flags.have_gradients(), required == expected]


def let_memory_go() -> bool:
    """Whether what shares counters holds the memory of a tensor whose data was exchanged."""
    parameter = torch.nn.Parameter(torch.zeros(100))
    counters = Counters([parameter])
    storage = weakref.ref(parameter.untyped_storage())
    parameter.data = torch.zeros(1)
    return storage() is None and len(counters.read()) == 1


def exchange() -> list[str]:
    """Tensors that are exchanged in place: where counters are read, and where flags are."""
    tensor = torch.zeros(3)
    counters = Counters([tensor])
    other = torch.zeros(3)
    other.add_(1)
    swap_tensors(tensor, other)
    answers = []
    try:
        counters.check()
    except GuardError as error:
        answers.append(str(error))
    parameter = torch.nn.Parameter(torch.zeros(3))
    flags = Flags([parameter])
    try:
        swap_tensors(parameter, torch.nn.Parameter(torch.zeros(3)))
    except RuntimeError as error:
        answers.append(str(error))
    return [*answers, str(flags.have_gradients())]


def read_inference_tensor() -> list[Any]:
    """Tensors that may not be read at once are read by Python."""
    with torch.inference_mode():
        flags = Flags([torch.zeros(2)])
        return [flags.have_gradients(), [*flags.read_requires_grad()]]


def rewind_generators() -> bool:
    """Python's numbers after a rewind, of which one is the second of a normal pair."""
    random.seed(7)
    random.gauss(0, 1)
    states = RandomStates([])
    for _ in range(2):
        states.take()
        expected = [random.gauss(0, 1), random.random(), random.gauss(0, 1)]
        states.rewind()
        if [random.gauss(0, 1), random.random(), random.gauss(0, 1)] != expected:
            return False
    return states._python._address is not None


if __name__ == "__main__":
    scenarios = (
        read_counters, read_flags, let_memory_go, exchange, read_inference_tensor,
        rewind_generators,
    )  # fmt: skip
    document = {scenario.__name__: scenario() for scenario in scenarios}
    print(json.dumps({**document, "is_native": load_reads() is not None}))
