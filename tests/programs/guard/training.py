"""Small models that train on the CPU under a guard, and what is left of a step, bit for bit."""

import random
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

WIDTH, LENGTH, VOCABULARY, BATCH = 16, 6, 32, 2


class Residual(nn.Module):
    """Convolutions with batch statistics."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(4, momentum=None)

    def forward(self, x):
        """x and the result are (batch, 4, height, width)."""
        return F.relu(x + self.norm2(self.second(F.relu(self.norm(self.first(x))))))


class ConvNet(nn.Module):
    """A residual network that counts its calls."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.blocks = nn.ModuleList(Residual() for _ in range(3))
        self.head = nn.Linear(4, 5)
        self.num_calls = 0

    def forward(self, images):
        """The logits, (batch, 5)."""
        self.num_calls += 1
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class Block(nn.Module):
    """A block of a transformer, with dropout that draws from torch's generator."""

    def __init__(self, *, is_causal, norm=nn.LayerNorm, mlp=None):
        super().__init__()
        self.norm, self.norm2 = norm(WIDTH), norm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = mlp or nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(0.1)
        )
        self.is_causal = is_causal

    def forward(self, x):
        """x and the result are (batch, tokens, WIDTH)."""
        q, k, v = (
            part.unflatten(-1, (2, -1)).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        x = x + F.dropout(self.out(y.transpose(1, 2).flatten(2)), 0.1)
        return x + self.mlp(self.norm2(x))


class Gated(nn.Module):
    """Llama's feed-forward part."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        """x and the result are (batch, tokens, WIDTH)."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    """Two of four experts for each token, by a router that keeps its loss."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(Gated() for _ in range(4))
        self.loss = None

    def forward(self, x):
        """x and the result are (batch, tokens, WIDTH)."""
        chances = self.router(x).softmax(-1)
        self.loss = chances.mean((0, 1)).square().sum()
        weights, choices = chances.topk(2, -1)
        result = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            chosen = choices == index
            rows = chosen.any(-1)
            weight = (weights * chosen).sum(-1)[rows]
            result[rows] += expert(x[rows]) * weight[:, None]
        return result


class Decoder(nn.Module):
    """A language model; the head has the weights of the embedding."""

    def __init__(self, **settings):
        super().__init__()
        make_mlp = settings.pop("make_mlp", lambda: None)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(
            Block(is_causal=True, mlp=make_mlp(), **settings) for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("positions", torch.arange(LENGTH))

    def forward(self, tokens):
        """The logits, (batch, tokens, VOCABULARY)."""
        x = self.embedding(tokens) + self.position(self.positions)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Vision(nn.Module):
    """A vision transformer."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, 4)
        self.blocks = nn.ModuleList(Block(is_causal=False) for _ in range(3))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, images):
        """The logits, (batch, 5)."""
        x = self.patch(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def draw_tokens():
    """A batch of a language model."""
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    return tokens[:, :-1], tokens[:, 1:]


def draw_images():
    """A batch of pictures."""
    return torch.randn(BATCH, 3, 8, 8), torch.randint(5, (BATCH,))


def cross_entropy(logits, targets):
    """The mean loss."""
    return F.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


def classify(model, inputs, targets):
    """The mean loss of a model, and the routers' losses."""
    loss = cross_entropy(model(inputs), targets)
    for module in model.modules():
        if isinstance(module, Mixture):
            loss = loss + 0.01 * module.loss
    return loss


def unseen(**values):
    """An object that a guard does not look into. Which errors are still to come is a fact of the
    machine: a second try must find that the first has had them.
    """
    held = threading.Event()
    vars(held).update(values)
    return held


@dataclass(frozen=True, slots=True)
class Case:
    """A training: its model, optimizer, batches, and how a step goes."""

    model: Callable
    optimizer: Callable
    draw: Callable = draw_tokens
    is_scaled: bool = False
    micro_batches: int = 1
    loss: Callable = classify


def sgd(**settings):
    """SGD of a kind, with momentum, in two groups."""

    def make(parameters):
        parameters = list(parameters)
        groups = [{"params": parameters[:-3]}, {"params": parameters[-3:], "lr": 0.02}]
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=1e-2, **settings)

    return make


def adamw(**settings):
    """AdamW of a kind, in two groups."""

    def make(parameters):
        parameters = list(parameters)
        groups = [
            {"params": [each for each in parameters if each.dim() > 1]},
            {"params": [each for each in parameters if each.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1, **settings)

    return make


CASES = {
    "cnn": Case(ConvNet, sgd(foreach=True), draw_images),
    "cnn for loop": Case(ConvNet, sgd(foreach=False), draw_images),
    "cnn fused": Case(ConvNet, sgd(fused=True), draw_images),
    "gpt2": Case(Decoder, adamw(foreach=True)),
    "gpt2 for loop": Case(Decoder, adamw(foreach=False)),
    "gpt2 accumulated": Case(Decoder, adamw(foreach=True), micro_batches=2),
    "vit": Case(Vision, adamw(foreach=True), draw_images, is_scaled=True),
    "vit accumulated": Case(
        Vision, adamw(foreach=True), draw_images, is_scaled=True, micro_batches=2
    ),
    "llama": Case(lambda: Decoder(norm=nn.RMSNorm, make_mlp=Gated), adamw(fused=True)),
    "llama accumulated": Case(
        lambda: Decoder(norm=nn.RMSNorm, make_mlp=Gated), adamw(fused=True), micro_batches=2
    ),
    "moe": Case(lambda: Decoder(norm=nn.RMSNorm, make_mlp=Mixture), adamw(foreach=True)),
}


class Training:
    """A model, its optimizer, and micro-batches, each of which is a step of the guard."""

    def __init__(self, case):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        self.case = case
        self.model = case.model()
        self.optimizer = case.optimizer(self.model.parameters())
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0) if case.is_scaled else None
        self.faults = nullcontext()

    def draw(self):
        """The micro-batches of a step."""
        return [self.case.draw() for _ in range(self.case.micro_batches)]

    def run(self, inputs, targets, *, is_last=True):
        """Forward and backward of a micro-batch, and after the last the optimizer's step."""
        with nullcontext() if getattr(self.faults, "is_over", False) else self.faults:
            return self.run_unwatched(inputs, targets, is_last=is_last)

    def run_unwatched(self, inputs, targets, *, is_last):
        """The same."""
        autocast = (
            torch.autocast("cpu", torch.bfloat16) if self.scaler is not None else nullcontext()
        )
        inputs = inputs + 0 if inputs.is_floating_point() else inputs.clone()
        random.random()
        np.random.rand()
        with autocast:
            loss = self.case.loss(self.model, inputs, targets)
        loss = loss / self.case.micro_batches
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        if is_last:
            self.run_optimizer()
        return loss.detach()

    def run_optimizer(self):
        """Clips the gradients, and takes the optimizer's step."""
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
        else:
            self.optimizer.step()

    def step(self, guard=None):
        """A step: the losses of its micro-batches. Gradients stay, to be compared."""
        self.optimizer.zero_grad()
        losses = []
        batches = self.draw()
        for index, batch in enumerate(batches):
            is_last = index == len(batches) - 1
            if guard is None:
                losses.append(self.run(*batch, is_last=is_last))
            else:
                losses.append(guard.step(self.run, *batch, is_last=is_last))
        if self.scaler is not None:
            self.scaler.update()
        return losses

    def state(self, losses):
        """All that a step leaves, by name."""
        values = {f"loss {index}": loss for index, loss in enumerate(losses)}
        values |= {f"model {name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            values[f"gradient {name}"] = parameter.grad
            for key, value in self.optimizer.state.get(parameter, {}).items():
                values[f"state {name} {key}"] = value
        values["torch's generator"] = torch.get_rng_state()
        values["Python's generator"] = random.getstate()
        values["NumPy's generator"] = [str(part) for part in np.random.get_state()]
        values["calls"] = getattr(self.model, "num_calls", 0)
        if self.scaler is not None:
            values["scaler"] = self.scaler.state_dict()
        return {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in values.items()
        }


def differences(state, expected):
    """The names of what differs, bit for bit."""
    if state.keys() != expected.keys():
        return sorted(state.keys() ^ expected.keys())
    return [name for name in state if not is_same(state[name], expected[name])]


def is_same(value, other):
    """Whether two values are equal, tensors bit for bit."""
    if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
        return value.dtype == other.dtype and torch.equal(value, other)
    return bool(value == other)


class Faults(TorchDispatchMode):
    """Counts operations, and raises an out-of-memory error instead of some of them.

    Attributes:
        count: of operations until now.
        allocating: where no numbers are given, those of the operations whose result has memory of
            its own.
        num_raised: errors until now.
        numbers: where an error is still to come.
    """

    def __init__(self, numbers=None):
        super().__init__()
        self.looks = numbers is None
        self.count = 0
        self.allocating = []
        self.num_raised = 0
        self.numbers = set(numbers or ())

    @property
    def is_over(self):
        """Whether all errors have come, and nothing is counted."""
        return self.num_raised > 0 and not self.numbers and not self.looks

    def error(self):
        """What is raised."""
        return torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of "
            "1.00 GiB of which 3.00 MiB is free."
        )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "profiler":
            return func(*args, **(kwargs or {}))
        result = self.call(func, args, kwargs or {})
        if func.__name__.startswith("_foreach_") and func._schema.arguments[0].alias_info:
            # Without a mode the kernel does this itself.
            for each in args[0]:
                torch.autograd.graph.increment_version(each)
        return result

    def call(self, func, args, kwargs):
        """Does an operation, or raises an error in place of it."""
        self.count += 1
        number = self.count
        if number in self.numbers:
            self.numbers.discard(number)
            self.num_raised += 1
            raise self.error()
        result = func(*args, **kwargs)
        if self.looks and allocates(result, (args, kwargs)):
            self.allocating.append(number)
        return result


def allocates(result, operands):
    """Whether a result has memory that no operand has."""
    given = {each.untyped_storage().data_ptr() for each in tensors(operands)}
    return any(each.untyped_storage().data_ptr() not in given for each in tensors(result))


def tensors(value):
    """The tensors in a nest of tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for element in value:
            yield from tensors(element)
