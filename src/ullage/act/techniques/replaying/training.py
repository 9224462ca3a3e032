"""Trains a twin for some steps on the CPU, with a plan or without, and compares two trainings.

untreated = train(make, script, lambda *_: None)
treated = train(make, script, plan_for)
compare(treated, untreated, dtype)
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ullage.act.techniques.means.nested import tensors as nested_tensors
from ullage.act.techniques.plan import Plan
from ullage.players.inside.owners.module_trees import paths

NUM_STEPS = 3
_RATE = 1e-3
_SEED = 7

Make = Callable[[], tuple[Any, list[Any]]]


@dataclass(frozen=True, slots=True)
class Training:
    """The results of some training steps.

    Attributes:
        losses: the loss of each step.
        gradients: the gradients of the last step, by parameter, except freed ones.
        values: parameters and buffers after the last step, by name.
        called: the paths of the modules that were called.
    """

    losses: list[float] = field(default_factory=list)
    gradients: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)  # modules; of an untreated twin alone


@dataclass(frozen=True, slots=True)
class Script:
    """Replaces the training loop of the program.

    Attributes:
        path: the path of the module that it calls.
        draw: returns the arguments of the call in a step.
        has_classes: whether the model returns logits for a cross-entropy of the program.
        dtype: the dtype of floating-point numbers.
    """

    path: str
    draw: Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]
    has_classes: bool
    dtype: Any


def train(
    make: Make, script: Script, plan_for: Callable[[Any, list[Any]], Plan | None]
) -> Training:
    """Trains a twin for some steps.

    Args:
        make: creates the twin and its optimizers.
        script: the training loop.
        plan_for: returns the plan for the twin and its optimizers, or None.
    """
    import torch

    done = Training()
    model, optimizers = make()
    plan = plan_for(model, optimizers)
    context = contextlib.nullcontext() if plan is None else plan.applied(model, optimizers)
    # A plan may refuse modules with hooks.
    noting = _noting_calls(model, done.called) if plan is None else contextlib.nullcontext()
    with on_the_cpu(script.dtype), noting, context:
        torch.manual_seed(_SEED)
        random.seed(_SEED)
        called = dict(paths(model))[script.path]
        for step in range(NUM_STEPS):
            _clear(model, optimizers)
            arguments, keywords = script.draw(step)
            loss = loss_of(
                called(*arguments, **keywords), has_classes=script.has_classes, seed=step
            )
            _backward(loss)
            done.losses.append(float(loss.detach()))
            if step == NUM_STEPS - 1:
                done.gradients.update(_gradients(model))
            _step(model, optimizers)
        values = chain(model.named_parameters(), model.named_buffers())
        done.values.update({name: tensor.detach().clone() for name, tensor in values})
    return done


def _backward(loss: Any) -> None:
    """Runs `loss.backward()` with recomputation on the CPU as well. `Tensor.backward` is a torch
    function, and torch disables function modes such as `on_the_cpu` while one runs.
    """
    import torch

    engine = torch.autograd.Variable._execution_engine
    engine.run_backward(
        (loss,), (torch.ones_like(loss),), False, False, (),  # noqa: FBT003
        allow_unreachable=True, accumulate_grad=True,
    )  # fmt: skip


def _clear(model: Any, optimizers: Sequence[Any]) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
    if not optimizers:
        model.zero_grad()


def _gradients(model: Any) -> dict[str, Any]:
    return {
        name: parameter.grad.detach().clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def _step(model: Any, optimizers: Sequence[Any]) -> None:
    import torch

    for optimizer in optimizers:
        optimizer.step()
    if not optimizers:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=_RATE)


def loss_of(output: Any, *, has_classes: bool, seed: int) -> Any:
    """The loss that the model returns; else the cross-entropy of its logits with random classes, or
    the mean squared error of its outputs to random numbers.
    """
    import torch

    own = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor):
        return own.sum()
    values = output.to_tuple() if hasattr(output, "to_tuple") else output
    tensors = [tensor for tensor in nested_tensors(values) if tensor.requires_grad]
    scalars = [tensor for tensor in tensors if not tensor.dim()]
    if scalars:
        return torch.stack(scalars).sum()
    generator = torch.Generator().manual_seed(seed)
    if has_classes and tensors and tensors[0].dim() > 1:
        rows = tensors[0].reshape(-1, tensors[0].shape[-1])
        classes = torch.randint(0, rows.shape[1], (rows.shape[0],), generator=generator)
        return torch.nn.functional.cross_entropy(rows, classes)
    losses = []
    for tensor in tensors:
        aim = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        losses.append((tensor - aim.normal_(generator=generator)).square().mean())
    return torch.stack(losses).sum()


@contextlib.contextmanager
def _noting_calls(model: Any, called: set[str]) -> Iterator[None]:
    handles = [
        module.register_forward_pre_hook(lambda _, __, path=path: called.add(path))
        for path, module in paths(model)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def on_the_cpu(dtype: Any) -> Iterator[None]:
    """Replaces CUDA devices and floating-point dtypes by those of the twin, in this context."""
    import torch
    from torch.overrides import TorchFunctionMode

    tensor = torch.Tensor
    floats = {torch.float32, torch.float16, torch.bfloat16, torch.float64}
    to_types = {tensor.float, tensor.half, tensor.bfloat16, tensor.double}

    def changed(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == "cuda":
            return torch.device("cpu")
        if isinstance(value, str) and value.partition(":")[0] == "cuda":
            return "cpu"
        return dtype if isinstance(value, torch.dtype) and value in floats else value

    class OnTheCpu(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            keywords = {key: changed(value) for key, value in (kwargs or {}).items()}
            if function is tensor.cuda:
                return args[0]
            if function in to_types:
                return args[0].to(dtype)
            return function(*map(changed, args), **keywords)

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    is_compiled = "torch._dynamo" in sys.modules
    eagerly = torch.compiler.set_stance("force_eager") if is_compiled else contextlib.nullcontext()
    try:
        with eagerly, OnTheCpu(), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(before)


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences between two trainings, relative to the loss and to the largest number of a
    tensor, and a text for people if one of them is too large.
    """

    loss: float
    gradient: float
    parameter: float
    text: str


def compare(treated: Training, untreated: Training, dtype: Any) -> Difference:
    """Finds differences between two trainings that the order of sums cannot explain."""
    import torch

    is_double = dtype is torch.float64
    close = 1e-8 if is_double else 2e-3
    # An optimizer that divides by the root of squares turns a gradient of pure rounding errors
    # into a full step.
    least = 0.0 if is_double else 2 * _RATE * NUM_STEPS
    pairs = zip(treated.losses, untreated.losses, strict=True)
    losses = [abs(loss - other) / max(abs(other), 1.0) for loss, other in pairs]
    largest = max(
        (float(value.abs().max()) for value in untreated.gradients.values() if value.numel()),
        default=0.0,
    )
    gradients = _apart(treated.gradients, untreated.gradients, 1e-3 * largest)
    values = _apart(treated.values, untreated.values, 0.0, least)
    text = ""
    for number, off in enumerate(losses):
        if not off <= close:  # also true for NaN
            text = f"the loss of step {number + 1} is {treated.losses[number]:.10g} under it, and "
            text += f"{untreated.losses[number]:.10g} without"
            break
    for what, deviations in (("gradient", gradients), ("value", values)):
        name = max(deviations, key=deviations.__getitem__, default="")
        if not text and any(not off <= close for off in deviations.values()):
            text = f"the {what} of {name} is off by {deviations[name]:.2g} of it"
    return Difference(
        max(losses, default=0.0),
        max(gradients.values(), default=0.0),
        max(values.values(), default=0.0),
        text,
    )


def _apart(
    tensors: dict[str, Any], expected: dict[str, Any], floor: float, least: float = 0.0
) -> dict[str, float]:
    apart = {}
    for name in tensors.keys() & expected.keys():
        tensor, other = tensors[name], expected[name]
        if tensor.shape != other.shape:
            apart[name] = float("inf")
        elif tensor.numel():
            off = float((tensor.double() - other.double()).abs().max()) - least
            scale = max(float(other.double().abs().max()), floor)
            apart[name] = max(off, 0.0) / scale if scale else float(off > 0)
    return dict(sorted(apart.items()))
