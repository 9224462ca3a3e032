"""What every tracker is here, and the user's own object as one."""

from __future__ import annotations

from typing import Any, Protocol

from ullage.record.trackers.figures import StepFigures

NAMESPACE = "ullage"


class Tracker(Protocol):
    """Where figures go: to a run of the user's own, which is looked for each time."""

    title: str
    """How messages call it."""

    def log(self, figures: StepFigures) -> bool:
        """Logs the figures without waiting for a network; False: there is no active run now.

        Raises:
            Exception: whatever the tracker raises.
        """

    def end(self) -> None:
        """Waits a few seconds for what is not delivered yet.

        Raises:
            Exception: whatever the tracker raises.
        """


class OwnTracker:
    """An object of the user's with a method `log(values, step)`."""

    def __init__(self, target: Any) -> None:
        self.title = type(target).__name__
        self._target = target

    def log(self, figures: StepFigures) -> bool:
        """Passes the figures on, in bytes, with names such as "ullage/allocated_peak_bytes"."""
        values = {f"{NAMESPACE}/{name}": value for name, value in figures.values().items()}
        self._target.log(values, step=figures.step)
        return True

    def end(self) -> None:
        """Nothing waits."""
