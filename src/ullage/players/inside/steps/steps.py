"""Steps: what ends one, and whether the program has reached the number that `--steps` allows.

A training step ends with optimizer.step(). A program that runs backward and never constructs an
optimizer ends a step where, after a backward, the next forward of a root module begins. A program
with neither ends a step with each forward of a root module without gradients.

Which of the three a program is shows as it runs. With its first optimizer, or its first backward,
the forwards that were counted before turn out to be evaluation: the count starts again, so that
`--steps` never ends a training program in an evaluation that comes first.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from enum import IntEnum, StrEnum
from types import CodeType, FrameType, ModuleType
from typing import Any

from ullage.players.inside import library
from ullage.players.inside.owners.module_trees import find_roots, live_owners
from ullage.players.inside.owners.source_location import is_users

# The signs that a program that has only run forwards without gradients is going to train.

_TRAINING_NAME = re.compile(
    r"backward|zero_grad|optim|optimizers?|fit|train|training_step|train_\w+|configure_optimizers"
    r"|\w*Trainer|GradScaler"
)


def find_training_sign(torch: ModuleType) -> str | None:
    """A sign that the program is going to train, in words; None: there is none."""
    for module in find_roots(live_owners(torch)[0]):
        if module.training and any(parameter.requires_grad for parameter in module.parameters()):
            return f"{type(module).__name__} is in training mode (inference: call .eval())"
    for code in _running_code():
        for part in _with_nested(code):
            for name in filter(_TRAINING_NAME.fullmatch, part.co_names):
                return f"the program's own code names {name}()"
    return None


def _running_code() -> Iterator[CodeType]:
    """The program's own code on the stack of the main thread."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            yield frame.f_code
        frame = frame.f_back


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_nested(constant)


Mark = tuple[int, str, Any]


class StepsReached(SystemExit):
    """Ends the program after the number of steps that `--steps` allows, as sys.exit(0) would."""


class StepKind(StrEnum):
    """The kind of a program's steps."""

    TRAINING = "training"
    INFERENCE = "inference"


class _EndedBy(IntEnum):
    """The end of a step; each outranks those before it. A forward is one without gradients."""

    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3


class Steps:
    """Counts the steps among the marks of a process, and ends the program after enough of them.

    Args:
        marks: of the process; a step is one of them.
        max_steps: after how many the program ends; None: it runs to its end.
        on_step: called after each with how many there are.
        on_stop: called before the program is ended, with how many there are and their kind.
    """

    def __init__(
        self,
        torch: ModuleType,
        marks: list[Mark],
        *,
        max_steps: int | None,
        on_step: Callable[[int], None],
        on_stop: Callable[[int, StepKind], None],
    ) -> None:
        self.count = 0
        self._torch = torch
        self._marks = marks
        self._max_steps = max_steps
        self._on_step = on_step
        self._on_stop = on_stop
        self._ended_by = _EndedBy.FORWARD
        self._has_backward_ended = False
        self._training_sign: str | None = None
        self._stepped: set[int] = set()  # the optimizers that have ended the last step
        self._num_optimizers = 0  # most that have ended one step

    @property
    def kind(self) -> StepKind:
        """The kind of the steps counted so far."""
        is_training = self._ended_by is not _EndedBy.FORWARD
        return StepKind.TRAINING if is_training else StepKind.INFERENCE

    @property
    def remark(self) -> str | None:
        """Why a program was not ended after this many forwards; None where it was, or trained."""
        if self._training_sign is None or self.kind is StepKind.TRAINING:
            return None
        return (
            f"--steps {self._max_steps} waits for training steps and does not count forwards "
            f"without gradients: {self._training_sign}"
        )

    def count_without_end(self) -> None:
        """Does not end the program, however many steps it was to run."""
        self._max_steps = None

    def see_optimizer(self) -> None:
        """An optimizer has been constructed, or steps."""
        self._take_up(_EndedBy.OPTIMIZER)

    def see_backward(self) -> None:
        """A backward begins."""
        self._take_up(_EndedBy.BACKWARD)
        self._stop_if_waiting()

    def _take_up(self, ended_by: _EndedBy) -> None:
        """From here on steps are ended by something of a higher rank: those before were none."""
        if ended_by <= self._ended_by:
            return
        self._ended_by = ended_by
        self._marks[:] = [mark for mark in self._marks if mark[1] != "step"]
        self.count = 0

    def begin_forward(self) -> None:
        """The forward of a root module begins: without an optimizer, the end of the step before."""
        self._stop_if_waiting()
        if self._has_backward_ended and self._ended_by is _EndedBy.BACKWARD:
            self._end()

    def end_forward(self) -> None:
        """The forward of a root module has ended."""
        if self._ended_by is _EndedBy.FORWARD and not self._torch.is_grad_enabled():
            self._end()

    def end_backward(self) -> None:
        """A backward has ended."""
        self._has_backward_ended = True

    def end_optimizer(self, optimizer: Any) -> None:
        """An optimizer has stepped. One right after another ends the same step: one has the
        matrices, say, and one the rest.
        """
        ends = (row for row in reversed(range(len(self._marks))) if self._marks[row][1] == "step")
        last = next(ends, None)
        since = {kind for _, kind, _ in self._marks[last:]} if last is not None else set()
        if last is None or since & {"forward_begin", "backward_begin"}:
            self._num_optimizers = max(self._num_optimizers, len(self._stepped))
            self._stepped.clear()
        elif id(optimizer) not in self._stepped:
            del self._marks[last]
            self.count -= 1
        self._stepped.add(id(optimizer))
        self._end()

    def end_by_program(self) -> None:
        """The program itself says that a step has ended."""
        self._end()

    def whole_marks(self, *, has_failed: bool) -> list[Mark]:
        """The marks; where nothing ended a step, each whole forward of a root module did.

        has_failed: whether a forward or a backward raised: what it was part of is unfinished.
        """
        if self._has_backward_ended and self._ended_by is _EndedBy.BACKWARD and not has_failed:
            return [*self._marks, (library.position(), "step", self.count)]
        if self.count or has_failed:
            return self._marks
        marks: list[Mark] = []
        num_steps = 0
        for mark in self._marks:
            marks.append(mark)
            if mark[1] == "forward_end":
                marks.append((mark[0], "step", num_steps))
                num_steps += 1
        return marks

    def _end(self) -> None:
        self._marks.append((library.position(), "step", self.count))
        self.count += 1
        self._has_backward_ended = False
        self._on_step(self.count)
        if self._max_steps is None or self.count < self._max_steps or self._is_before_training():
            return
        if not self._waits_for_optimizers():
            self._stop()

    def _waits_for_optimizers(self) -> bool:
        """True if earlier steps were ended by more optimizers than this one yet: a program that
        ends here would lack the others' work in its last step.
        """
        return self.count == self._max_steps and 0 < len(self._stepped) < self._num_optimizers

    def _stop_if_waiting(self) -> None:
        """The next step begins, and the optimizers that were waited for did not step."""
        if self._waits_for_optimizers():
            self._stop()

    def _stop(self) -> None:
        self._on_stop(self.count, self.kind)
        raise StepsReached(0)

    def _is_before_training(self) -> bool:
        """True if forwards without gradients are all that came yet of a program that will train."""
        if self.kind is StepKind.TRAINING:
            return False
        if self._training_sign is None and self.count == self._max_steps:
            self._training_sign = find_training_sign(self._torch)
            if self.remark is not None:
                print(f"ullage: {self.remark}", file=sys.stderr)
        return self._training_sign is not None
