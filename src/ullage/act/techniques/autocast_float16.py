"""Computes in float16 where that is safe (torch's autocast), and scales gradients so that small
ones do not underflow. It is for GPUs without bfloat16.

It does what a program does with `torch.amp.GradScaler`, with the same constants. Backward starts
from the scaled loss, and each gradient is scaled back when it reaches its parameter, so that the
program can clip or accumulate the true gradients. If a gradient is not finite, the optimizer's step
is skipped with a warning that counts them, and the scale is halved. After 2,000 good steps it is
doubled.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ullage.act.techniques.means.mixed_precision import compute_in
from ullage.act.techniques.means.optimizer_parts import parameters_of
from ullage.act.techniques.technique import Action, Place, Semantics, Technique

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target

# The constants of torch.amp.GradScaler.
_FIRST_SCALE = 2.0**16
_GROWTH_INTERVAL = 2000
_LEAST_SCALE = 1.0
_ACCUMULATES = "AccumulateGrad"


def _apply(target: Target, _: Action) -> None:
    import torch

    compute_in(target, torch.float16, AUTOCAST_FLOAT16.refuse)
    if not target.optimizers:
        AUTOCAST_FLOAT16.refuse("it has no optimizer whose steps could be skipped")
    scaler = _Scaler(target.model, target.optimizers)
    for parameter in scaler.parameters:
        target.changes.hook(parameter.register_hook(scaler.scale_back))
    for optimizer in target.optimizers:
        handle = optimizer.register_step_pre_hook(scaler.check)
        # Before whatever else steps in the optimizer's place.
        optimizer._optimizer_step_pre_hooks.move_to_end(handle.id, last=False)
        target.changes.hook(handle)
    backward = torch.autograd.backward
    scaled = functools.wraps(backward)(functools.partial(scaler.backward, backward))
    target.changes.set(torch.autograd, "backward", scaled)


class _Scaler:
    def __init__(self, model: Any, optimizers: list[Any]) -> None:
        stepped = itertools.chain.from_iterable(map(parameters_of, optimizers))
        parameters = {*stepped, *model.parameters()}
        self.parameters = {parameter for parameter in parameters if parameter.requires_grad}
        self._scale = _FIRST_SCALE
        self._num_good = 0
        self._num_skipped = 0
        self._is_scaled = False

    def backward(
        self, backward: Any, tensors: Any, grad_tensors: Any = None, *rest: Any, **keywords: Any
    ) -> None:
        """`torch.autograd.backward`, from scaled gradients if it reaches our parameters."""
        import torch

        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        grads = [grad_tensors] if isinstance(grad_tensors, torch.Tensor) else grad_tensors
        grads = list(grads) if grads is not None else [None] * len(roots)
        leaves = set(_leaves(roots))
        if self._is_scaled or not leaves & self.parameters:
            backward(tensors, grad_tensors, *rest, **keywords)
            return
        if leaves - self.parameters:
            AUTOCAST_FLOAT16.refuse(
                "a backward also reaches parameters of another optimizer, or of none"
            )
        scaled = [
            (torch.ones_like(root) if grad is None else grad) * self._scale
            for root, grad in zip(roots, grads, strict=True)
        ]
        self._is_scaled = True
        try:
            backward(roots, scaled, *rest, **keywords)
        finally:
            self._is_scaled = False

    def scale_back(self, gradient: Any) -> Any:
        """Scales a gradient back. The scale is a power of two, so this is exact."""
        return gradient * (1 / self._scale) if self._is_scaled else None

    def check(self, optimizer: Any, *_: Any) -> None:
        """Runs before a step, and skips it if a gradient is not finite."""
        parameters = parameters_of(optimizer)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if _are_finite(gradients):
            self._num_good += 1
            if self._num_good == _GROWTH_INTERVAL:
                self._scale, self._num_good = 2 * self._scale, 0
            return
        for parameter in parameters:
            parameter.grad = None
        self._scale, self._num_good = max(self._scale / 2, _LEAST_SCALE), 0
        self._num_skipped += 1
        warnings.warn(
            "a step was skipped because its float16 gradients were not finite "
            f"({self._num_skipped} so far); the new scale is {self._scale:g}",
            stacklevel=2,
        )


def _are_finite(gradients: list[Any]) -> bool:
    """True if all gradients are finite; synchronises with the device once."""
    import torch

    if not gradients:
        return True
    largest = torch._foreach_norm(gradients, float("inf"))
    return bool(torch.stack([norm.to(largest[0].device) for norm in largest]).isfinite().all())


def _leaves(roots: list[Any]) -> Iterator[Any]:
    """The leaf tensors that a backward reaches."""
    nodes = [root.grad_fn for root in roots if root.grad_fn is not None]
    visited = set(nodes)
    while nodes:
        node = nodes.pop()
        if node.name().endswith(_ACCUMULATES):
            yield node.variable
        for following, _ in node.next_functions:
            if following is not None and following not in visited:
                visited.add(following)
                nodes.append(following)


AUTOCAST_FLOAT16 = Technique(
    name="autocast_float16",
    does="computes in float16 where that is safe (autocast), and scales gradients",
    precondition="as for autocast; each backward reaches parameters of its optimizers only",
    proof="as for autocast; the graph of each backward is traversed",
    semantics=Semantics.ROUNDING,
    place=Place.PROGRAM,
    reference="https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",
    apply=_apply,
    excludes=(
        "autocast",
        "bf16_parameters",
        "optimizer_in_backward",
        "micro_batches",
        "shard",
        "tensor_parallel",
        "zero_optimizer",
    ),
)
