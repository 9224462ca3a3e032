"""The errors that ullage raises on purpose.

The classes form a tree, so a caller can catch all of them or a single kind:

    UllageError
    ├── SpecError            a request is not possible: a size, a GPU, an option
    ├── SnapshotError        a memory snapshot cannot be read, or is not one
    ├── PlanError            a plan cannot be made or applied
    ├── DeviceError          a GPU, real or phantom, cannot do what is needed
    ├── EnvironmentProblem   this machine or Python environment lacks something, such as torch
    ├── BudgetExceeded       more memory is needed than the budget allows
    └── GuardError           a step that ran out of memory cannot be run again

A message says what was found, what was expected and what to do. The classes have no logic; the
command line turns them into one message and an exit code.
"""

from __future__ import annotations

__all__ = [
    "BudgetExceeded",
    "DeviceError",
    "EnvironmentProblem",
    "GuardError",
    "PlanError",
    "SnapshotError",
    "SpecError",
    "UllageError",
]


class UllageError(Exception):
    """The base class of all errors of ullage; the message is written for the user."""


class SpecError(UllageError):
    """A request is not possible: a malformed size, an unknown GPU, conflicting options."""


class SnapshotError(UllageError):
    """A memory snapshot cannot be read, or the file is not one."""


class PlanError(UllageError):
    """A plan cannot be made or applied."""


class DeviceError(UllageError):
    """A GPU, real or phantom, cannot do what is needed."""


class EnvironmentProblem(UllageError):
    """This machine or Python environment lacks something: CUDA's torch, a library, a platform."""


class BudgetExceeded(UllageError):
    """More memory is needed than the budget allows."""


class GuardError(UllageError):
    """A step that ran out of memory cannot be run again, or cannot be finished."""
