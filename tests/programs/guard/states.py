"""Trainings whose steps change state of a kind at a place, and of which one runs out of memory.

states.py SEED COUNT [FIRST]   COUNT programs of a seed, from number FIRST on; the last line of the
                               output is a list of [kind, place, change, moment, error, end]
states.py names                prints the kinds and ways

docs/reference/guard-state.md has the kinds, the places and what is expected as a table.
"""

import array
import collections
import contextvars
import gc
import itertools
import json
import multiprocessing
import queue
import random
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from typing import Any

import numpy as np
import torch
from torch import nn
from training import unseen

import ullage
from ullage.ground.errors import GuardError

NUM_STEPS, FAILING = 4, 2
LARGE = 1 << 19
MACHINE = unseen(place=None, step=0)
VALUE: Any = None


@dataclass
class Record:
    """A dataclass of the program."""

    number: int = 0
    history: list = field(default_factory=list)


class Slots:
    """An object without a dict."""

    __slots__ = ("number",)

    def __init__(self):
        self.number = 0


class OwnList(list):
    """A list with an attribute."""

    total = 0


class OwnDict(dict):
    """A dict with an attribute."""

    total = 0


class Countdown:
    """An iterator of the program."""

    def __init__(self):
        self.number = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.number += 1
        return self.number


def bump(value):
    """Adds to an attribute."""
    value.number += 1


def grow_total(value):
    """Adds to a container and its attribute."""
    value.total += 1
    value.append(value.total) if isinstance(value, list) else value.update({value.total: 1})


def nest(value):
    """Appends deep within a dict."""
    value["a"]["b"].append(len(value["a"]["b"]))


def own_context():
    """A variable of a context."""
    variable = contextvars.ContextVar("number", default=0)
    variable.set(1)
    return variable


def keyed_weakly():
    """A dict whose keys are held by the program only."""
    table = weakref.WeakKeyDictionary()
    table[Record] = 0
    return table


def add_key(table):
    """Counts for a key."""
    table[Record] += 1


def other_proxy(value):
    """A proxy of another class than that of `value`."""
    return weakref.proxy(Countdown if value.__name__ == "Record" else Record)


def endless():
    """A generator."""
    number = 0
    while True:
        number += 1
        yield number


def in_a_loop():
    """A generator that always waits at the same place with the same variables."""
    same = object()
    for _ in itertools.repeat(same):
        yield 1


def text_file():
    """A file to write to."""
    return tempfile.TemporaryFile("w+")


def reorder(value):
    """Changes the order of a dict alone."""
    value.move_to_end(next(iter(value)))


def remember(queued):
    """Puts something on a queue, and takes something off."""
    queued.put(queued.qsize())
    queued.put(7)
    queued.get()


def size_of(value):
    """How much was drawn or put, for what cannot be looked into."""
    return len(value) if hasattr(value, "__len__") else 0


@dataclass(frozen=True)
class Value:
    """State of a kind: how it is made, changed in place, made anew of the last, and read."""

    make: Callable
    change: Callable | None = None
    renew: Callable | None = None
    read: Callable = repr


def read_next(value):
    """The next of an iterator, which ends it as a state."""
    return [next(value), next(value)]


VALUES = {
    "number": Value(lambda: 1, renew=lambda v: v + 1),
    "fraction": Value(lambda: 0.1, renew=lambda v: v * 1.1),
    "flag": Value(lambda: False, renew=lambda v: not v),
    "text": Value(lambda: "a", renew=lambda v: v + "b"),
    "nothing or a number": Value(lambda: None, renew=lambda v: 1 if v is None else v + 1),
    "tuple": Value(lambda: (1,), renew=lambda v: (*v, len(v))),
    "list": Value(list, lambda v: v.append(len(v)), lambda v: [*v, len(v)]),
    "list that is emptied": Value(lambda: [*range(9)], lambda v: v.pop(), lambda v: v[1:]),
    "list of a class of its own": Value(OwnList, grow_total),
    "dict": Value(dict, lambda v: v.update({len(v): 1}), lambda v: {**v, len(v): 1}),
    "dict of a class of its own": Value(OwnDict, grow_total),
    "dict in a dict": Value(lambda: {"a": {"b": []}}, nest, lambda v: {"a": {"b": [v]}}),
    "order of a dict": Value(lambda: collections.OrderedDict(a=1, b=2, c=3), reorder),
    "set": Value(set, lambda v: v.add(len(v)), lambda v: v | {len(v)}),
    "deque": Value(lambda: collections.deque([1, 2], 3), lambda v: v.append(v[-1] + 1)),
    "Counter": Value(collections.Counter, lambda v: v.update("ab"), lambda v: v + v.__class__("a")),
    "defaultdict": Value(lambda: collections.defaultdict(int), lambda v: v[len(v)]),
    "UserDict": Value(collections.UserDict, lambda v: v.update({len(v): 1}),
                      read=lambda v: repr(v.data)),
    "dataclass": Value(Record, bump, lambda v: Record(v.number + 1)),
    "object with slots": Value(Slots, bump, read=lambda v: v.number),
    "namespace": Value(lambda: types.SimpleNamespace(number=0), bump),
    "iterator of a class of its own": Value(Countdown, next, read=lambda v: v.number),
    "bytearray": Value(lambda: bytearray(b"a"), lambda v: v.append(len(v))),
    "array.array": Value(lambda: array.array("d", [1.0]), lambda v: v.append(len(v))),
    "NumPy array": Value(lambda: np.zeros(3), lambda v: np.add(v, 1, out=v), lambda v: v + 1),
    "NumPy array of objects": Value(lambda: np.array([[1], 2], dtype=object),
                                    lambda v: v[0].append(1)),
    "large NumPy array": Value(lambda: np.zeros(LARGE), lambda v: np.add(v, 1, out=v),
                               lambda v: v + 1, lambda v: float(v.sum())),
    "tensor": Value(lambda: torch.zeros(3), lambda v: v.add_(1), lambda v: v + 1),
    "tensor changed past its counter": Value(lambda: torch.zeros(3), lambda v: v.data.add_(1)),
    "large tensor": Value(lambda: torch.zeros(LARGE), lambda v: v.add_(1), lambda v: v + 1,
                          lambda v: float(v.sum())),
    "large tensor changed past its counter": Value(
        lambda: torch.zeros(LARGE), lambda v: v.data.add_(1), read=lambda v: float(v.sum())),
    "random.Random": Value(lambda: random.Random(1), lambda v: v.random(),
                           read=lambda v: v.getstate()),
    "NumPy Generator": Value(lambda: np.random.default_rng(1), lambda v: v.random(),
                             read=lambda v: repr(v.bit_generator.state)),
    "NumPy RandomState": Value(lambda: np.random.RandomState(1), lambda v: v.rand(),
                               read=lambda v: repr(v.get_state())),
    "torch.Generator": Value(lambda: torch.Generator().manual_seed(1),
                             lambda v: torch.rand(1, generator=v),
                             read=lambda v: v.get_state().tolist()),
    "itertools.count": Value(itertools.count, next),
    "ContextVar": Value(own_context, lambda v: v.set(v.get() + 1), read=lambda v: v.get()),
    "WeakKeyDictionary": Value(keyed_weakly, add_key, read=lambda v: [*v.values()]),
    "weakref.proxy": Value(lambda: weakref.proxy(Record), renew=other_proxy,
                           read=lambda v: v.__name__),
    "queue.Queue": Value(queue.Queue, remember, read=lambda v: [*v.queue]),
    "iterator over a list": Value(lambda: iter([*range(20)]), next, read=read_next),
    "iterator over a range": Value(lambda: iter(range(20)), next, read=read_next),
    "enumerate": Value(lambda: enumerate([*range(20)]), next, read=read_next),
    "itertools.cycle": Value(lambda: itertools.cycle([1, 2, 3]), next, read=read_next),
    "map": Value(lambda: map(abs, [*range(20)]), next, read=read_next),
    "generator": Value(endless, next, read=read_next),
    "generator in a loop": Value(in_a_loop, next, read=lambda v: 0),
    "open file": Value(text_file, lambda v: v.write("a"), read=lambda v: v.tell()),
    "io.StringIO": Value(StringIO, lambda v: v.write("a"), read=lambda v: v.getvalue()),
}  # fmt: skip


class Net(nn.Module):
    """Three blocks, and a place for state."""

    shared: Any = None

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.1)) for _ in range(3)
        )
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        """x and the result are (rows, 3)."""
        for block in self.blocks:
            x = block(x).tanh()
        return self.norm(x)


class Owner:
    """An object with state, and a step that is a method."""

    def __init__(self, value=None):
        self.value = value
        self.run = None

    def step(self, batch):
        """A training step."""
        return self.run(batch)


class Inner:
    """Keeps state in a slot."""

    __slots__ = ("value",)


class Program:
    """A training whose steps change a value at a place."""

    def __init__(self, kind, place, is_in_place, moment):
        global VALUE
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        VALUE = Net.shared = None
        self.kind, self.is_in_place, self.moment = VALUES[kind], is_in_place, moment
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        make = WAYS.get(kind) or PLACES[place]
        self.fn, self.read, self.batch = make(self, self.kind.make())

    def changed(self, value):
        """The value after a change."""
        if not self.is_in_place:
            return self.kind.renew(value)
        self.kind.change(value)
        return value

    def with_change(self, change):
        """A step that also changes something."""
        return lambda batch: self.train(batch, change)

    def train(self, batch, change):
        """A step that changes the value at a moment, and may run out of memory after it."""
        x = batch["x"] if isinstance(batch, dict) else batch
        self.optimizer.zero_grad()
        if self.moment == "before forward":
            change()
        handle = None
        if self.moment == "in a block":
            handle = self.model.blocks[0][0].register_forward_hook(lambda *_: run_alone(change))
        if self.moment == "in a hook":
            handle = self.model.register_forward_hook(lambda *_: run_alone(change))
        loss = self.model(x).square().mean()
        fail_at("forward")
        if handle is not None:
            handle.remove()
        if self.moment == "before backward":
            change()
        loss.backward()
        if self.moment == "after backward":
            change()
        fail_at("backward")
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        fail_at("clipping")
        self.optimizer.step()
        return float(loss)


def run_alone(change):
    """Runs a change; a hook that returns something would exchange the output for it."""
    change()


def fail_at(place):
    """Runs out of memory where the machine does."""
    if place == MACHINE.place and MACHINE.step == FAILING:
        MACHINE.place = None
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def of_module(program, value):
    """An attribute of a module."""
    model = program.model
    model.value = value

    def fn(batch):
        return program.train(batch, lambda: setattr(model, "value", program.changed(model.value)))

    return fn, lambda: model.value, None


def in_dict_of_module(program, value):
    """An element of a dict that a module has."""
    table = program.model.table = {"value": value}

    def fn(batch):
        return program.train(batch, lambda: table.update(value=program.changed(table["value"])))

    return fn, lambda: table["value"], None


def in_list_of_module(program, value):
    """An element of a list in a module of the model."""
    values = program.model.blocks[1].values = [None, value]

    def change():
        values[1] = program.changed(values[1])

    return (lambda batch: program.train(batch, change)), lambda: values[1], None


def in_closure(program, value):
    """A variable of a function."""

    def change():
        nonlocal value
        value = program.changed(value)

    return (lambda batch: program.train(batch, change)), lambda: value, None


def in_global(program, value):
    """A global variable of the program."""
    global VALUE
    VALUE = value
    return partial(train_global, program), lambda: VALUE, None


def train_global(program, batch):
    """A step that changes a global variable."""
    return program.train(batch, change_global(program))


def change_global(program):
    """What changes the global variable."""

    def change():
        global VALUE
        VALUE = program.changed(VALUE)

    return change


def in_default(program, value):
    """A default of an argument."""
    held = [value]

    def fn(batch, held=held):
        return program.train(batch, lambda: held.append(program.changed(held.pop())))

    return fn, lambda: held[0], None


def of_function(program, value):
    """An attribute of the step's function."""

    def fn(batch):
        return program.train(batch, lambda: setattr(fn, "value", program.changed(fn.value)))

    fn.value = value
    return fn, lambda: fn.value, None


def of_object(program, value):
    """An attribute of the object whose method the step is."""
    owner = Owner(value)

    def change():
        owner.value = program.changed(owner.value)

    owner.run = lambda batch: program.train(batch, change)
    return owner.step, lambda: owner.value, None


def of_slot(program, value):
    """A slot of an object that a partial function has."""
    owner = Inner()
    owner.value = value

    def fn(owner, batch):
        return program.train(batch, lambda: setattr(owner, "value", program.changed(owner.value)))

    return partial(fn, owner), lambda: owner.value, None


def of_class(program, value):
    """An attribute of the model's class."""
    Net.shared = value

    def change():
        Net.shared = program.changed(Net.shared)

    return (lambda batch: program.train(batch, change)), lambda: Net.shared, None


def of_optimizer(program, value):
    """An entry of the optimizer's groups."""
    group = program.optimizer.param_groups[0]
    group["value"] = value

    def fn(batch):
        return program.train(batch, lambda: group.update(value=program.changed(group["value"])))

    return fn, lambda: group["value"], None


def of_parameter(program, value):
    """An attribute of a parameter."""
    weight = program.model.blocks[0][0].weight
    weight.value = value

    def fn(batch):
        return program.train(batch, lambda: setattr(weight, "value", program.changed(weight.value)))

    return fn, lambda: weight.value, None


def in_batch(program, value):
    """An element of the batch."""
    batch = {"x": None, "value": value}

    def fn(batch):
        return program.train(batch, lambda: batch.update(value=program.changed(batch["value"])))

    return fn, lambda: batch["value"], batch


def by_rate(program, _):
    """A learning rate that the step sets itself."""
    group = program.optimizer.param_groups[0]
    return (
        program.with_change(lambda: group.update(lr=group["lr"] * 0.9)),
        lambda: group["lr"],
        None,
    )


def by_scheduler(program, _):
    """A scheduler's step at the begin of the step."""
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(program.optimizer, 7)
    program.model.scheduler = scheduler
    return program.with_change(scheduler.step), scheduler.get_last_lr, None


def by_lambda(program, _):
    """A scheduler whose rates a function with state of its own says."""
    asked = []
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        program.optimizer, lambda step: asked.append(step) or 1 / (1 + len(asked))
    )
    return program.with_change(scheduler.step), lambda: [*asked], None


def by_average(program, _):
    """An average of the weights before the forward."""
    average = torch.optim.swa_utils.AveragedModel(program.model)
    change = partial(average.update_parameters, program.model)
    return program.with_change(change), lambda: tensors_of(average), None


def by_teacher(program, _):
    """A teacher's weights, moved past their version counters."""
    teacher = Net()

    def change():
        for ours, theirs in zip(teacher.parameters(), program.model.parameters(), strict=True):
            ours.data.mul_(0.9).add_(theirs.data, alpha=0.1)

    return program.with_change(change), lambda: tensors_of(teacher), None


def by_scaler(program, _):
    """A gradient scaler that the guard was not given."""
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1)

    def fn(x):
        program.optimizer.zero_grad()
        scaler.scale(program.model(x).square().mean()).backward()
        scaler.unscale_(program.optimizer)
        for place in ERRORS:
            fail_at(place)
        scaler.step(program.optimizer)
        scaler.update()

    return fn, lambda: scaler.state_dict(), None


def by_accumulation(program, _):
    """Micro-batches, each a step of the guard."""
    count = itertools.count(1)
    program.numbers = [next(count)]

    def fn(x):
        program.model(x).square().mean().backward()
        for place in ERRORS:
            fail_at(place)
        program.numbers.append(len(program.numbers) + 1)
        if len(program.numbers) % 2:
            program.optimizer.step()
            program.optimizer.zero_grad()

    return fn, lambda: program.numbers, None


def by_popping(program, _):
    """A batch that the step takes apart."""
    batch = {}

    def fn(batch):
        x = batch.pop("x")
        return program.train(x, lambda: None)

    return fn, lambda: sorted(batch), batch


def by_hooks(program, _):
    """A hook of a parameter that the step adds, and takes away at its end."""
    weight = program.model.blocks[0][0].weight

    def fn(x):
        handle = weight.register_hook(lambda gradient: gradient * 2)
        program.train(x, lambda: None)
        handle.remove()

    return fn, lambda: len(weight._backward_hooks or ()), None


def by_hook_of_a_module(program, _):
    """A hook of a module that counts."""
    counts = collections.Counter()
    program.model.register_forward_hook(lambda *_: counts.update(["calls"]))
    return program.with_change(lambda: None), lambda: dict(counts), None


def by_hook_of_a_layer(program, _):
    """A hook within a block, which a leaner rung runs twice, that counts and keeps a mean."""
    counts, mean = [], {"mean": 0.0}

    def hook(module, inputs, output):
        counts.append(len(counts))
        mean["mean"] = 0.9 * mean["mean"] + 0.1 * float(output.detach().mean())

    program.model.blocks[0][0].register_forward_hook(hook)
    return program.with_change(lambda: None), lambda: (counts, mean), None


def by_new_module(program, _):
    """A module that the step adds."""
    model = program.model

    def change():
        setattr(model, f"extra{len([*model.children()])}", nn.Linear(1, 1))

    return program.with_change(change), lambda: [name for name, _ in model.named_children()], None


def by_requires_grad(program, _):
    """Parameters that the step turns off and on."""
    bias = program.model.blocks[0][0].bias

    def change():
        bias.requires_grad_(not bias.requires_grad)

    return program.with_change(change), lambda: bias.requires_grad, None


def by_mode(program, _):
    """A model that goes to evaluation and back by turns."""
    model = program.model
    return (
        program.with_change(lambda: model.train(not model.training)),
        lambda: model.training,
        None,
    )


def by_state_of_optimizer(program, _):
    """Momenta that the step shrinks."""

    def change():
        for state in program.optimizer.state.values():
            state["exp_avg"].mul_(0.5)

    return program.with_change(change), lambda: 0, None


def by_weights(program, _):
    """Weights that the step shrinks."""

    def change():
        with torch.no_grad():
            program.model.blocks[0][0].weight.mul_(0.99)

    return program.with_change(change), lambda: 0, None


def by_exchanged_weights(program, _):
    """Weights that the step exchanges for others."""
    weight = program.model.blocks[0][0].weight

    def change():
        weight.data = weight.data * 0.99

    return program.with_change(change), lambda: 0, None


def by_graph(program, _):
    """A loss with its graph that the next step reads."""
    seen = program.model.seen = []

    def fn(x):
        loss = program.model(x).square().mean()
        if seen:
            loss = loss + 0 * seen.pop().detach()
        seen.append(loss)
        return program.train(x, lambda: None)

    return fn, lambda: len(seen), None


def by_unread_graph(program, _):
    """An output with its graph that a module keeps, and nobody reads."""
    model = program.model
    model.register_forward_hook(lambda module, _, output: setattr(module, "last", output))
    return program.with_change(lambda: None), lambda: model.last.tolist(), None


def by_hidden_state(program, _):
    """A hidden state that goes from step to step."""
    model = program.model
    model.hidden = torch.zeros(4, 3)

    def fn(x):
        hidden = model.hidden
        result = program.train(x + hidden, lambda: None)
        model.hidden = (hidden + x).tanh().detach()
        fail_at("end")
        return result

    return fn, lambda: model.hidden.tolist(), None


def by_large_buffer(program, _):
    """A queue of two megabytes, a buffer that each step writes to."""
    program.model.register_buffer("queue", torch.zeros(LARGE))

    def change():
        program.model.queue[:3] += program.model.norm.running_mean

    return program.with_change(change), lambda: float(program.model.queue.sum()), None


def by_late_write(program, _):
    """A tensor of two megabytes, which the step that fails is the first to write to."""
    table = torch.zeros(LARGE)

    def change():
        if MACHINE.step >= FAILING:
            table.add_(1)

    return program.with_change(change), lambda: float(table.sum()), None


class Square(torch.autograd.Function):
    """A square with a backward of its own, which counts."""

    count = 0

    @staticmethod
    def forward(ctx, x):
        """x is of any shape."""
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        """Of x."""
        Square.count += 1
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def by_custom_function(program, _):
    """A function with a backward of its own."""
    Square.count = 0

    def fn(x):
        return program.train(Square.apply(x + program.model.norm.bias), lambda: None)

    return fn, lambda: Square.count, None


def by_double_backward(program, _):
    """A penalty on the gradient."""

    def fn(x):
        x = x.requires_grad_()
        loss = program.model(x).square().mean()
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        program.optimizer.zero_grad()
        (loss + gradient.square().sum()).backward()
        for place in ERRORS:
            fail_at(place)
        program.optimizer.step()

    return fn, lambda: 0, None


def by_spectral_norm(program, _):
    """A weight that is divided by its largest singular value, which each forward estimates."""
    nn.utils.parametrizations.spectral_norm(program.model.blocks[1][0])
    return program.with_change(lambda: None), lambda: 0, None


def by_thread(program, _):
    """Work in a thread."""
    counts = []

    def change():
        thread = threading.Thread(target=lambda: counts.append(len(counts)))
        thread.start()
        thread.join()

    return program.with_change(change), lambda: [*counts], None


def by_pool(program, _):
    """Work in a pool of threads."""
    pool, counts = ThreadPoolExecutor(1), []
    return program.with_change(lambda: pool.submit(counts.append, 1).result()), lambda: counts, None


def by_nested_guard(program, _):
    """A second guard within the step, of another model."""
    other = Net()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    inner = ullage.guard(other, optimizer)
    inner.__enter__()

    def train_other(x):
        optimizer.zero_grad()
        other(x).sum().backward()
        return x

    return (lambda x: program.train(inner.step(train_other, x), lambda: None)), (
        lambda: tensors_of(other)
    ), None  # fmt: skip


def by_global_generators(program, _):
    """The generators that everybody shares."""

    def change():
        return random.random() + np.random.rand() + float(torch.rand(1))

    return program.with_change(change), random.random, None


def by_running_sum(program, _):
    """Numbers for a log: a sum, a best one, a list, a dict of lists."""
    total, best, log = 0.0, float("inf"), {"loss": []}

    def fn(x):
        nonlocal total, best
        loss = program.train(x, lambda: log["loss"].append(total))
        total, best = total + loss, min(best, loss)
        return loss

    return fn, lambda: (total, best, log), None


def by_iterator(program, _):
    """An iterator that is the batch."""
    batch = {"x": None, "rows": iter([torch.ones(3)] * 9)}

    def fn(batch):
        return program.train(batch["x"] + next(batch["rows"]), lambda: None)

    return fn, lambda: len([*batch["rows"]]), batch


def by_loader(program, _):
    """An iterator of a loader, from which the step draws."""
    loader = iter(torch.utils.data.DataLoader(torch.arange(40.0), batch_size=4))
    return program.with_change(lambda: next(loader)), lambda: len([*loader]), None


def by_leaf(program, _):
    """A gradient that adds up in a tensor that no optimizer has."""
    noise = torch.zeros(4, 3, requires_grad=True)

    def fn(x):
        loss = program.train(x + noise, lambda: None)
        return loss + float(noise.grad.sum())

    return fn, lambda: noise.grad.tolist(), None


def by_hook_of_all_modules(program, _):
    """A hook of all modules that counts."""
    counts = collections.Counter()
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, *_: counts.update([type(module).__name__])
    )
    weakref.finalize(program, handle.remove)
    return program.with_change(lambda: None), lambda: dict(counts), None


def by_shared_value(program, _):
    """A number that processes share."""
    shared = multiprocessing.Value("i", 0)

    def change():
        shared.value += 1

    return program.with_change(change), lambda: shared.value, None


def by_second_optimizer(program, _):
    """A second model whose optimizer the guard was not given."""
    other = Net()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)

    def fn(x):
        optimizer.zero_grad()
        other(x).sum().backward()
        fail_at("backward")
        optimizer.step()
        return program.train(x, lambda: None)

    return fn, lambda: tensors_of(other), None


def tensors_of(module):
    """What is in a module."""
    return [each.tolist() for each in module.state_dict().values()]


WAYS = {
    function.__doc__.splitlines()[0].strip(".").lower(): function
    for function in (
        by_rate, by_scheduler, by_lambda, by_average, by_teacher, by_scaler, by_accumulation,
        by_popping, by_hooks, by_hook_of_a_module, by_new_module, by_requires_grad, by_mode,
        by_state_of_optimizer, by_weights, by_exchanged_weights, by_graph, by_unread_graph,
        by_hidden_state, by_large_buffer, by_late_write, by_custom_function, by_double_backward,
        by_spectral_norm, by_thread, by_pool, by_nested_guard, by_global_generators, by_running_sum,
        by_iterator, by_loader, by_leaf, by_hook_of_a_layer, by_hook_of_all_modules,
        by_shared_value, by_second_optimizer,
    )
}  # fmt: skip
VALUES |= dict.fromkeys(WAYS, Value(lambda: None, change=lambda _: None))
PLACES = {
    "module": of_module, "dict of a module": in_dict_of_module,
    "list of a module": in_list_of_module, "closure": in_closure, "global": in_global,
    "default": in_default, "function": of_function,
    "object": of_object, "slot": of_slot, "class": of_class, "optimizer": of_optimizer,
    "parameter": of_parameter, "batch": in_batch,
}  # fmt: skip
MOMENTS = ("before forward", "in a hook", "before backward", "after backward")
ERRORS = ("forward", "backward", "clipping")


def run(kind, place, is_in_place, moment, error=None):
    """What a training leaves; with an error it is guarded."""
    program = Program(kind, place, is_in_place, moment)
    MACHINE.place, losses = error, []
    guard = ullage.guard(program.model, program.optimizer) if error else None
    with redirect_stderr(StringIO()):
        if guard is not None:
            guard.__enter__()
        try:
            for step in range(NUM_STEPS):
                MACHINE.step = step
                x = torch.randn(4, 3)
                batch = x if program.batch is None else program.batch
                if program.batch is not None:
                    batch["x"] = x
                call = program.fn if guard is None else partial(guard.step, program.fn)
                losses.append(call(batch))
        finally:
            if guard is not None:
                guard.__exit__(None, None, None)
    states = [*program.model.state_dict().values(), torch.get_rng_state()]
    for state in program.optimizer.state.values():
        states += state.values()
    value = program.read()
    return [losses, *(each.tolist() for each in states), program.kind.read(value)], guard


def end_of(kind, place, is_in_place, moment, error):
    """ "restored", "refused: ...", or what is wrong."""
    expected, _ = run(kind, place, is_in_place, moment)
    try:
        found, guard = run(kind, place, is_in_place, moment, error)
    except GuardError as refusal:
        cause = type(refusal.__cause__).__name__
        return "refused: " + str(refusal) if cause == "OutOfMemoryError" else f"lost: {cause}"
    except Exception as other:
        return f"other error: {type(other).__name__}: {other}"
    if guard.num_recoveries != 1:
        return "not run again"
    return "restored" if repr(found) == repr(expected) else "different"


def programs(seed, count):
    """Kind, place, change, moment and error of some programs; all kinds in turn."""
    draw = random.Random(seed)
    kinds, chosen = [], []
    while len(chosen) < count:
        kinds = kinds or draw.sample([*VALUES], len(VALUES))
        kind = kinds.pop()
        value = VALUES[kind]
        changes = [True] * (value.change is not None) + [False] * (value.renew is not None)
        error = draw.choice(ERRORS)
        moments = MOMENTS[:2] if error == "forward" else MOMENTS
        place = "its own" if kind in WAYS else draw.choice([*PLACES])
        chosen.append((kind, place, draw.choice(changes), draw.choice(moments), error))
    return chosen


def main():
    """Runs some programs."""
    torch.set_num_threads(1)
    if sys.argv[1:] == ["names"]:
        print(json.dumps([*VALUES]))
        return
    run("number", "module", False, MOMENTS[0], ERRORS[0])
    gc.freeze()
    seed, count, first = int(sys.argv[1]), int(sys.argv[2]), int([*sys.argv, 0][3])
    ends = []
    for program in programs(seed, first + count)[first:]:
        kind, place, is_in_place, *_ = program
        change = "in place" if is_in_place else "reassigned"
        ends.append([kind, place, change, *program[3:], end_of(*program)])
    print(json.dumps(ends))


if __name__ == "__main__":
    main()
