"""Comet: names with its own prefix ("ullage_..."), at the step that the program has set.

A step that is logged becomes the experiment's own, at which the program's next metrics would be
shown. So none is given: Comet takes the program's, or the time where it has none.
"""

from __future__ import annotations

import sys
from typing import Any

from ullage.record.trackers.figures import StepFigures
from ullage.record.trackers.tracker import NAMESPACE


class CometTracker:
    """The running experiment, or the one that is given."""

    title = "Comet"

    def __init__(self, experiment: Any = None) -> None:
        self._experiment = experiment

    def log(self, figures: StepFigures) -> bool:
        """Queues the metrics in the experiment, which sends them in a thread of its own."""
        experiment = self._experiment
        if experiment is None:
            experiment = _running_experiment()
        if experiment is None:
            return False
        values = {**figures.values(), "step": float(figures.step)}
        experiment.log_metrics(values, prefix=NAMESPACE)
        return True

    def end(self) -> None:
        """The program ends its own experiment."""


def _running_experiment() -> Any:
    """By the function of Comet's present version, or that of older ones."""
    comet: Any = sys.modules.get("comet_ml")
    for name in ("get_running_experiment", "get_global_experiment"):
        find = getattr(comet, name, None)
        if find is not None:
            return find()
    return None
