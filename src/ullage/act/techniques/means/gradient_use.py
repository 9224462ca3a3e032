"""Watches what a program does with gradients that a technique has freed after their use.

Only gradients that nobody misses are freed. From its use in a step until the program zeroes it, a
gradient may be neither read nor added to; a program that does so is refused at that line. A program
that zeroes gradients in place (`zero_grad(set_to_none=False)`) has zero gradients for parameters
that a backward does not reach, and its optimizer steps with them. These zeros are provided.

Reads are detected as `parameter.grad`. They are not detected for parameters of tensor subclasses
(DTensor).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

from ullage.act.techniques.means.optimizer_parts import parameters_of

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target

# Modules that only test whether there are gradients.
_MAY_READ = ("ullage.", "torch.optim", "torch.nn.modules", "torch.distributed", "torch._dynamo")


class GradientUse:
    """The gradients of a target's optimizers, which are freed one at a time.

    Args:
        target: a model and its optimizers.
        refuse: raises a PlanError with a reason.
    """

    def __init__(self, target: Target, refuse: Callable[[str], NoReturn]) -> None:
        import torch

        self._refuse = refuse
        self._used: dict[Any, Any] = {}
        self._zeros: set[Any] = set()  # parameters whose gradient is all zeros in the program
        self._on_zero: list[Callable[[], None]] = []
        self._spent: dict[Any, Any] = {}
        self._optimizers = {id(optimizer) for optimizer in target.optimizers}
        parameters = list(chain.from_iterable(map(parameters_of, target.optimizers)))
        if len(set(parameters)) != len(parameters):
            refuse("a parameter is in two optimizers, and the second needs its gradient too")
        target.changes.on_undo(self._forget, parameters)
        # `Module.zero_grad` is detected by its reads, except for tensor subclasses.
        is_plain = all(type(parameter) is torch.nn.Parameter for parameter in parameters)
        for owner in (*target.optimizers, *([] if is_plain else [target.model])):
            target.changes.set(owner, "zero_grad", self._zeroing(owner, owner.zero_grad))
        for optimizer in target.optimizers:
            target.changes.hook(optimizer.register_step_pre_hook(self._before_step))
        self._watch_reads(target)

    def free(self, parameter: Any) -> None:
        """Frees a gradient after its use."""
        parameter.grad = None
        if parameter not in self._used:
            hook = parameter.register_post_accumulate_grad_hook(self._refuse_more)
            self._used[parameter] = hook

    def is_used(self, parameter: Any) -> bool:
        """True if a gradient was used and not zeroed since then."""
        return parameter in self._used

    def on_zero(self, call: Callable[[], None]) -> None:
        """Registers a function to call before gradients are zeroed."""
        self._on_zero.append(call)

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        import torch

        for parameter in _parameters(optimizer):
            if parameter in self._zeros and parameter.grad is None and parameter not in self._used:
                parameter.grad = torch.zeros_like(parameter)

    def watch_steps(self, target: Target) -> None:
        """Refuses a second step with the same gradients. Call it after all other hooks are set."""
        for optimizer in target.optimizers:
            target.changes.hook(optimizer.register_step_post_hook(self._after_step))

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        for parameter in _parameters(optimizer):
            hook = self._used.get(parameter)
            if hook is not None and self._spent.get(parameter) is hook:
                self._refuse("a second step uses the same gradients")
            self._spent[parameter] = hook

    def _zeroing(self, owner: Any, zero_grad: Any) -> Any:
        """A `zero_grad` that always frees."""

        @functools.wraps(zero_grad)
        def freeing(set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - as torch has it
            self._zero(_parameters(owner), is_none=set_to_none)
            zero_grad(set_to_none=True)

        return freeing

    def _zero(self, parameters: Iterable[Any], *, is_none: bool) -> None:
        for call in self._on_zero:
            call()
        parameters = list(parameters)
        if is_none:
            self._zeros.difference_update(parameters)
        else:
            have = [
                parameter
                for parameter in parameters
                if parameter in self._used or parameter.grad is not None
            ]
            self._zeros.update(have)
        self._forget(parameters)

    def _forget(self, parameters: Iterable[Any]) -> None:
        for parameter in parameters:
            hook = self._used.pop(parameter, None)
            if hook is not None:
                hook.remove()

    def _refuse_more(self, _: Any) -> None:
        self._refuse(
            "backward ran after a step without a call of zero_grad() between, so that gradients "
            "were to add up over steps"
        )

    def _is_another(self, caller: Any) -> bool:
        owner = caller.f_locals.get("self")
        return hasattr(owner, "param_groups") and id(owner) not in self._optimizers

    def _watch_reads(self, target: Target) -> None:
        import torch

        plain: Any = torch.Tensor.grad
        use = self

        def read(parameter: Any) -> Any:
            if parameter in use._used:
                caller = sys._getframe(1)
                name = str(caller.f_globals.get("__name__", ""))
                if caller.f_code.co_name == "zero_grad" and name.startswith("torch."):
                    use._zero([parameter], is_none=caller.f_locals.get("set_to_none", True))
                elif not name.startswith(_MAY_READ) or use._is_another(caller):
                    does = "clipped" if name.endswith("clip_grad") else f"read by {name}"
                    use._refuse(f"gradients are {does} after the step that has used them")
            return plain.__get__(parameter)

        def write(parameter: Any, gradient: Any) -> None:
            use._zeros.discard(parameter)
            if sys._getframe(1).f_globals.get("__name__") != __name__:
                use._forget([parameter])
            plain.__set__(parameter, gradient)

        target.changes.set(torch.nn.Parameter, "grad", property(read, write))


def _parameters(owner: Any) -> list[Any]:
    return parameters_of(owner) if hasattr(owner, "param_groups") else list(owner.parameters())
