"""Weights & Biases: a section of its own ("ullage/..."), with its own step as the x axis.

Each call of `run.log` begins a new row, and a program that logs with its own step numbers would
lose what it logs for rows that are over. So the figures join the row that the program fills
(`commit=False`), as those of `wandb.watch` do, and are written with it.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from ullage.record.trackers.background import Background
from ullage.record.trackers.figures import PEAKS, StepFigures
from ullage.record.trackers.tracker import NAMESPACE

_STEP = f"{NAMESPACE}/step"
_PEAKS = tuple(f"{NAMESPACE}/{peak}_bytes" for peak in PEAKS)


class WandbTracker:
    """`wandb.run`, or the run that is given.

    Which row is filled has to be asked of wandb's own process: that is done in a thread.
    """

    title = "Weights & Biases"

    def __init__(self, run: Any = None) -> None:
        self._run = run
        self._background = Background()
        self._defined: Any = None
        self._row: dict[str, float] = {}
        self._row_number: int | None = None

    def log(self, figures: StepFigures) -> bool:
        """Queues the figures for the run's current row."""
        run = _active_run() if self._run is None else self._run
        if run is None:
            return False
        self._background.hand(functools.partial(self._add, run, figures))
        return True

    def _add(self, run: Any, figures: StepFigures) -> None:
        try:
            self._add_to_row(run, figures)
        except Exception:
            # The program may end its run at any time; that is no failure.
            if self._run is not None or _active_run() is run:
                raise

    def _add_to_row(self, run: Any, figures: StepFigures) -> None:
        """Of several figures in one row the highest peaks, and the latest of all else."""
        if run is not self._defined:
            run.define_metric(_STEP, hidden=True)
            run.define_metric(f"{NAMESPACE}/*", step_metric=_STEP)
            for name in _PEAKS:  # of a peak the summary is the highest, not the last
                run.define_metric(name, step_metric=_STEP, summary="max")
            self._defined, self._row_number = run, None
        values = {f"{NAMESPACE}/{name}": value for name, value in figures.values().items()}
        number = _row_number(run)
        if number is None:
            run.log({**values, _STEP: figures.step})
            return
        if number != self._row_number:
            self._row, self._row_number = {}, number
        for name in _PEAKS:
            values[name] = max(values[name], self._row.get(name, 0.0))
        self._row = values
        run.log({**values, _STEP: figures.step}, commit=False)

    def end(self) -> None:
        """Waits for the queue; the program's own end of the run writes the last row."""
        self._background.end()


def _active_run() -> Any:
    return getattr(sys.modules.get("wandb"), "run", None)


def _row_number(run: Any) -> int | None:
    """The row that is filled; None: the run is shared by processes, and each call makes a row."""
    try:
        return int(run.step)
    except Exception:
        return None
