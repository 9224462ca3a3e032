"""The state of a training before a step, from which the step can be run again.

Three parts serve one mechanism: everything that can be reached (reach.py), the generators that
Python, NumPy and torch share (generators.py), and whether parameters require gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ullage.act.guard.failure import say
from ullage.act.guard.reads.counters import Flags
from ullage.act.guard.state.generators import RandomStates
from ullage.act.guard.state.kinds import SMALL_BYTES, ParameterHooks
from ullage.act.guard.state.reach import Reach


class State:
    """The state that is noted before each step, and put back after one that failed.

    Args:
        model: the `nn.Module`.
        optimizers: of its parameters.
        parameters: of the model and the optimizers.
        scaler: a `torch.amp.GradScaler`, or None.
        extra: objects that the step changes.
        averages: moving averages of the weights, which are updated after the optimizer.
    """

    def __init__(
        self, model: Any, optimizers: Sequence[Any], parameters: Sequence[Any], *,
        scaler: Any = None, extra: Sequence[Any] = (), averages: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        self._parameters = parameters
        of_averages = [t for each in averages for t in (*each.parameters(), *each.buffers())]
        roots = {
            "model": model, "optimizer": [*optimizers], "scaler": scaler, "extra": [*extra],
            "averages": [*averages], "parameters": ParameterHooks(parameters),
            "hooks of all modules": hooks_of_all_modules(),
        }  # fmt: skip
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._reach = Reach(roots, [*parameters, *of_averages], names, extra)
        self._random = RandomStates(parameters)
        self._flags = Flags(parameters)
        self._requires_grad: Sequence[bool | int] = ()
        self._gradients: set[int] = set()
        self._has_said = False

    def take(self, fn: Any, batch: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Notes the state before a step: of the model and all else, and of what it is called with.

        Args:
            fn: the step's function.
            batch: what it is called with.
            keywords: the same, by name.
        """
        arguments = {f"argument {index}": each for index, each in enumerate(batch)}
        self._reach.take(fn, {**arguments, **keywords})
        self._take_rest()
        if not self._has_said and self._reach.num_bytes > SMALL_BYTES:
            say(f"copies before each step take {self._reach.text}")
        self._has_said = True

    def take_again(self) -> None:
        """Notes it under another plan, which has put attributes of its own on modules."""
        self._reach.take_again()
        self._take_rest()

    def _take_rest(self) -> None:
        self._requires_grad = self._flags.read_requires_grad()
        self._random.take()

    def drop_batch(self) -> None:
        """After a step: what it was called with is not held."""
        self._reach.drop_batch()

    def learn(self) -> None:
        """After a step that succeeded: which large tensors it has changed."""
        self._reach.learn()

    def has_drawn(self) -> bool:
        """True if the step has drawn from one of torch's generators."""
        return self._random.have_moved()

    def is_unscaled(self, optimizers: Sequence[Any]) -> bool | None:
        """True if a scaler has divided gradients by its loss scale since the step began; None: some
        of them, or there is no scaler.
        """
        states = {
            key: state
            for scaler in self._reach.find(torch.amp.GradScaler)
            for key, state in scaler._per_optimizer_states.items()
        }
        stages = {states[id(each)]["stage"] for each in optimizers if id(each) in states}
        names = {stage.name for stage in stages}
        return False if names <= {"READY"} else True if names == {"UNSCALED"} else None

    def restore(self, others: Sequence[Any]) -> None:
        """Puts the state back.

        Args:
            others: tensors that are put back or followed by other means, such as gradients.

        Raises:
            GuardError: the step has changed what cannot be put back, which is named.
        """
        self._reach.restore({*map(id, others)})
        for parameter, value in zip(self._parameters, self._requires_grad, strict=True):
            if parameter.requires_grad != value:
                parameter.requires_grad_(bool(value))
        self._random.rewind()

    def check(self) -> None:
        """After a second try: raises GuardError if it has kept a tensor that is gone."""
        self._reach.check_lost()


def hooks_of_all_modules() -> list[Any]:
    """The hooks that torch calls around every module."""
    items = vars(torch.nn.modules.module).items()
    return [each for name, each in items if name.startswith("_global") and isinstance(each, dict)]


class SecondRuns:
    """The contexts around second runs of modules, which a plan of a rung makes in backward: once,
    as far as their state goes.

    The plan restores attributes of the module itself (act/techniques/means/rerun.py). What its
    hooks and its functions change elsewhere, as a hook that counts, is taken back here.
    """

    def __init__(self) -> None:
        self._reaches: dict[Any, Reach] = {}  # by module

    @contextmanager
    def undone(self, module: Any) -> Iterator[None]:
        """Takes back, at its end, what is changed within it.

        Raises:
            GuardError: something was changed that cannot be put back.
        """
        reach = self._reaches.get(module)
        if reach is None:
            roots = {"module": module, "hooks of all modules": hooks_of_all_modules()}
            reach = self._reaches[module] = Reach(roots, [*module.parameters()], {})
        reach.take(None, {})
        try:
            yield
        finally:
            reach.restore()
