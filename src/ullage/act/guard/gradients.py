"""Gradients from before a step, as accumulated micro-batches: nothing is copied.

A version counter says whether a gradient that was there has had its sum of the failed try. What had
is left out of the second try (rerun.py); what the failed try made is dropped and made again. Only
gradients that collectives add to are copied (sharded/gradient_copies.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any
from weakref import ref

import torch

from ullage.act.guard.progress import Progress
from ullage.act.guard.reads.counters import Flags
from ullage.act.guard.sharded.local_tensors import is_sharded
from ullage.ground.errors import GuardError

# Copies of the gradients from before a step, for those that collectives add to as backward goes.

_NO_COPY = (
    "there was no memory for a copy of the gradients of earlier micro-batches, to which "
    "collectives add as backward goes; pass all micro-batches of an optimizer's step to one "
    "guard.step"
)
_NO_MEMORY = (
    "there is no memory for the gradients of earlier micro-batches, which the step has freed"
)


class GradientCopies:
    """The gradients that some parameters have now.

    Args:
        parameters: some of them have a gradient.
    """

    def __init__(self, parameters: Sequence[Any]) -> None:
        self._parameters = parameters
        self._gradients = [None if each.grad is None else ref(each.grad) for each in parameters]
        self._copies: list[Any] | None = None
        with torch.no_grad():
            try:
                self._copies = [
                    None if each.grad is None else each.grad.detach().clone() for each in parameters
                ]
            except torch.OutOfMemoryError:
                self._copies = None

    def restore(self) -> None:
        """Gives the parameters these gradients again.

        Raises:
            GuardError: there was no memory for copies, or there is none for a gradient that was
                freed.
        """
        if self._copies is None:
            raise GuardError(_NO_COPY)
        with torch.no_grad():
            for index, (parameter, copy) in enumerate(
                zip(self._parameters, self._copies, strict=True)
            ):
                parameter.grad = None if copy is None else self._put_back(index, copy)

    def _put_back(self, index: int, copy: Any) -> Any:
        reference = self._gradients[index]
        gradient = None if reference is None else reference()
        if gradient is not None:
            return gradient.copy_(copy)
        try:
            gradient = copy.clone()
        except torch.OutOfMemoryError:
            raise GuardError(_NO_MEMORY) from None
        self._gradients[index] = ref(gradient)
        return gradient


_GRAD = attrgetter("grad")


class Gradients:
    """The gradients of some parameters before a step.

    Args:
        parameters: all that the step may give gradients to.
        are_views: whether DDP reduces them where they are; then, as for sharded ones, they are
            copied.
    """

    def __init__(self, parameters: Sequence[Any], *, are_views: bool = False) -> None:
        self._parameters = parameters
        self._are_copied = are_views or any(map(is_sharded, parameters))
        self._copies: GradientCopies | None = None
        self._flags = Flags(parameters)
        self._before: list[tuple[Any, int] | None] | None = None
        self._stand_ins: dict[tuple[Any, Any], Any] = {}
        self._progress: Progress | None = None

    @property
    def progress(self) -> Progress | None:
        """The progress of those that were there; None if there were none."""
        return self._progress

    @property
    def are_added_to(self) -> bool:
        """True if there were gradients before the step, of which there is no copy."""
        return self._before is not None

    @property
    def from_before(self) -> list[Any]:
        """The gradients that were there before the step and still are, for all we know."""
        now = [each.grad for each in self._parameters if each.grad is not None]
        before = [entry[0]() for entry in self._before or () if entry is not None]
        return [each for each in (*now, *before) if each is not None]

    def take(self, leaves: Sequence[Any] = ()) -> None:
        """Notes which gradients there are.

        Args:
            leaves: tensors of FSDP2's with gradients that it has not reduced yet.
        """
        self._progress = None
        self._before = None
        self._copies = None
        if not (leaves or self._flags.have_gradients()):
            return
        if self._are_copied:
            self._copies = GradientCopies([*self._parameters, *leaves])
        else:
            self._before = [
                None if gradient is None else (ref(gradient), gradient._version)
                for gradient in map(_GRAD, self._parameters)
            ]

    def rewind(self, *, is_unscaled: bool | None = None) -> None:
        """After a failed try: drops what it made. A second failed try continues the first.

        Args:
            is_unscaled: whether the try has divided them by the loss scale; None: not known.
        """
        if self._copies is not None:
            self._copies.restore()
            return
        if self._before is None:
            for parameter in self._parameters:
                parameter.grad = None
            return
        is_first = self._progress is None
        progress = self._progress or Progress()
        for index, parameter in enumerate(self._parameters):
            before = self._before[index]
            if before is None:
                parameter.grad = None
                continue
            reference, version = before
            gradient = reference()
            if gradient is None or parameter.grad is not gradient:
                self._before[index] = (_nothing, 0)
                parameter.grad = self._stand_in(parameter)
                progress.add_absent(parameter.grad)
            elif is_first:
                progress.add(gradient, gradient._version - version)
        kinds = {(each.dtype, each.device) for each in self._parameters}
        # Of several kinds, some may be divided and others not yet.
        progress.is_unscaled = None if is_unscaled is False and len(kinds) > 1 else is_unscaled
        progress.begin()
        self._progress = progress

    def check(self) -> None:
        """After a second try that succeeded: raises GuardError if it did not do what the first
        had done.
        """
        if self._progress is None:
            return
        self._progress.check()
        if any(self._is_stand_in(parameter) for parameter in self._parameters):
            raise GuardError("the second run of the step kept a gradient that the first had freed")

    def drop_stand_ins(self) -> None:
        """Leaves neither copies nor stand-ins behind."""
        self._copies = None
        if self._progress is None:
            return
        for parameter in self._parameters:
            if self._is_stand_in(parameter):
                parameter.grad = None

    @property
    def is_incomplete(self) -> bool:
        """True if gradients that were there before the step have had a part of its sums."""
        return self._progress is not None and not self._progress.is_untouched

    def _stand_in(self, parameter: Any) -> Any:
        """A gradient of the right shape without memory of its own."""
        kind = (parameter.dtype, parameter.device)
        if kind not in self._stand_ins:
            self._stand_ins[kind] = torch.zeros(1, dtype=kind[0], device=kind[1])
        return self._stand_ins[kind].expand(parameter.shape)

    def _is_stand_in(self, parameter: Any) -> bool:
        memory = self._stand_ins.get((parameter.dtype, parameter.device))
        gradient = parameter.grad
        return (
            memory is not None
            and gradient is not None
            and gradient.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
        )


def _nothing() -> None:
    """A reference to nothing."""
