"""What counts as a step, and when `--steps` ends a program, as words: the order of events decides.

N a forward without gradients, F one with, B a backward, C an optimizer is constructed, 1 and 2 the
steps of two optimizers.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ullage.players.inside.steps import steps as steps_module
from ullage.players.inside.steps.steps import StepKind, Steps, StepsReached


class Program:
    """Makes events, until it is ended."""

    def __init__(self, max_steps: int | None) -> None:
        self.marks: list[Any] = []
        self.stops: list[tuple[int, StepKind]] = []
        self.has_gradients = True
        torch: Any = SimpleNamespace(is_grad_enabled=lambda: self.has_gradients)
        self.steps = Steps(
            torch,
            self.marks,
            max_steps=max_steps,
            on_step=lambda _count: None,
            on_stop=lambda count, kind: self.stops.append((count, kind)),
        )

    def run(self, script: str) -> int:
        """How many events came before the program was ended; all, where it was not."""
        for number, word in enumerate(script.replace(" ", "")):
            try:
                self._event(word)
            except StepsReached:
                return number + 1
        return len(script.replace(" ", ""))

    def _event(self, word: str) -> None:
        if word in "NF":
            self.has_gradients = word == "F"
            self.steps.begin_forward()
            self.marks.append((0, "forward_begin", None))
            self.marks.append((0, "forward_end", None))
            self.steps.end_forward()
        elif word == "B":
            self.steps.see_backward()
            self.marks.append((0, "backward_begin", None))
            self.steps.end_backward()
        elif word == "C":
            self.steps.see_optimizer()
        else:
            self.steps.see_optimizer()
            self.steps.end_optimizer(int(word))


@pytest.fixture
def sign(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What the search for signs of training finds: the last of the list."""
    signs: list[str | None] = [None]
    monkeypatch.setattr(steps_module, "library", SimpleNamespace(position=lambda: 0))
    monkeypatch.setattr(steps_module, "find_training_sign", lambda _torch: signs[-1])
    return signs


TRAINING, INFERENCE = StepKind.TRAINING, StepKind.INFERENCE


@pytest.mark.parametrize(
    ("script", "events", "stops"),
    [
        ("NNNNN", 3, [(3, INFERENCE)]),  # inference
        ("FFFFF", 5, []),  # with gradients, to no end
        ("C NNNNN FB1 FB1 FB1 FB1", 15, [(3, TRAINING)]),  # an evaluation comes first
        ("NN C NN FB1 FB1 FB1 FB1", 14, [(3, TRAINING)]),  # before there is an optimizer
        ("NN FB NN FB NN FB FB FB", 13, [(3, TRAINING)]),  # no optimizer ever: the next forward
        ("C NFB1 NFB1 NFB1 NFB1", 13, [(3, TRAINING)]),  # a frozen encoder
        ("C FB1 NN FB1 NN FB1 NN", 14, [(3, TRAINING)]),  # validations between
        ("C FB2 FB1 FB2 FB1", 10, [(3, TRAINING)]),  # as a GAN: the steps of both
        ("C FBFBFB1 FBFBFB1 FBFBFB1 FB", 22, [(3, TRAINING)]),  # accumulation
        ("FB FB C FB1 FB1 FB1 FB1", 14, [(3, TRAINING)]),  # backwards before the optimizer
        ("C FB12 FB12 FB12 FB12", 13, [(3, TRAINING)]),  # two optimizers end one step
        ("C FB12 FB12 FB1 FB1", 13, [(3, TRAINING)]),  # the second does not step any more
        ("C FB12 FB12 FB1 BB1", 13, [(3, TRAINING)]),  # nor is there a forward of a module
        ("C FB12 FB12 FB11", 13, [(4, TRAINING)]),  # the first steps twice
        ("C FB1 FB2 FB1 FB2 FB1", 10, [(3, TRAINING)]),  # they take turns
        ("C NNNNNNN", 8, []),  # an optimizer, and no training
    ],
)
def test_three_steps_end_a_program(
    sign: list[str | None], script: str, events: int, stops: list[tuple[int, StepKind]]
) -> None:
    program = Program(3)
    assert (program.run(script), program.stops) == (events, stops)


def test_a_sign_of_training_keeps_forwards_from_ending_the_program(
    sign: list[str | None], capsys: pytest.CaptureFixture[str]
) -> None:
    sign.append("Net is in training mode")
    program = Program(3)
    assert program.run("NNNNN") == 5
    assert program.steps.remark is not None and "Net is in training mode" in program.steps.remark
    assert "waits for training steps" in capsys.readouterr().err
    assert program.run("C FB1 FB1 FB1 FB1") == 10
    assert program.stops == [(3, TRAINING)] and program.steps.remark is None


def indices(program: Program) -> list[Any]:
    marks = program.steps.whole_marks(has_failed=False)
    return [index for _, kind, index in marks if kind == "step"]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("NNN", [0, 1, 2]),
        ("FFF", [0, 1, 2]),
        ("C NN FB1 NN FB1", [0, 1]),
        ("NN C FB1 FB1", [0, 1]),
        ("NN FB FB", [0, 1]),
        ("C FB12 FB12", [0, 1]),
    ],
)
def test_steps_are_numbered_from_the_first_of_their_kind(
    sign: list[str | None], script: str, expected: list[int]
) -> None:
    program = Program(None)
    program.run(script)
    assert indices(program) == expected
