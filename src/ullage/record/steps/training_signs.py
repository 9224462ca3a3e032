"""The signs that a program that has only run forwards without gradients is going to train.

An evaluation before the first training step looks like inference while it runs. Two signs tell them
apart, and either is enough:

- a model is in training mode and has parameters that require gradients. Inference calls
  model.eval(), or freezes the parameters;
- the program's own code, where it runs now, calls what only training calls: backward(), fit(),
  Trainer.train().

A sign that misleads costs time alone: the program is not cut short.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType, ModuleType

from ullage.record.owners.module_trees import find_roots, live_owners
from ullage.record.owners.source_location import is_users

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
