"""The errors that ullage raises on purpose.

The classes form a tree, so a caller can catch all of them or a single kind:

    UllageError
    ├── SpecError            a request is not possible: a size, a GPU, an option
    ├── SnapshotError        a memory snapshot cannot be read, or is not one
    ├── PlanError            a plan cannot be made or applied
    ├── DeviceError          a GPU, real or phantom, cannot do what is needed
    ├── EnvironmentProblem   this machine or Python environment lacks something, such as torch
    ├── BudgetExceeded       more memory is needed than the budget allows
    ├── RequestTooLarge      a request to a model does not fit, whatever cache it gets
    └── GuardError           a step that ran out of memory cannot be run again

A message says what was found, what was expected and what to do. The classes have no logic; the
command line turns them into one message and an exit code.
"""

from __future__ import annotations


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


class RequestTooLarge(UllageError):
    """A request to a model does not fit, whatever cache it gets.

    Attributes:
        needed_bytes: of the cache for the prompt and all new tokens; None if it cannot be told.
        free_bytes: of the GPU's memory after the request was let go; None without a GPU.
    """

    def __init__(
        self, message: str, *, needed_bytes: int | None = None, free_bytes: int | None = None
    ) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class GuardError(UllageError):
    """A step that ran out of memory cannot be run again, or cannot be finished."""
