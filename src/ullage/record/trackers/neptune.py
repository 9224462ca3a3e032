"""Neptune: a namespace of its own ("ullage/...") in the run, by the client of version 3
(neptune_scale) or the one before (neptune).

Neptune takes no step that is not above the one before: a second recording into the same run goes on
counting where the first one ended.
"""

from __future__ import annotations

import weakref
from typing import Any

from ullage.record.patches import Patches
from ullage.record.trackers.figures import StepFigures
from ullage.record.trackers.instances import Instances
from ullage.record.trackers.tracker import NAMESPACE

_CLASSES = {"neptune_scale.api.run": "Run", "neptune.metadata_containers.run": "Run"}
_last_steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


class NeptuneTracker:
    """The newest run that the program has begun since the recording did, or the one that is given.

    Args:
        patches: where new runs are noted.
        run: the one; None: the newest.
    """

    title = "Neptune"

    def __init__(self, patches: Patches, run: Any = None) -> None:
        self._run = run
        self._instances = Instances(patches, _CLASSES) if run is None else None
        self._current: Any = None
        self._offset = 0

    def log(self, figures: StepFigures) -> bool:
        """Queues the values in the client, which sends them in a process or thread of its own."""
        run = self._find_run()
        if run is None:
            return False
        if run is not self._current:
            self._current, self._offset = run, _last_steps.get(run, 0)
        step = _last_steps[run] = figures.step + self._offset
        values = {f"{NAMESPACE}/{name}": value for name, value in figures.values().items()}
        if hasattr(run, "log_metrics"):
            run.log_metrics(data=values, step=step)
        else:
            for name, value in values.items():
                run[name].append(value, step=step)
        return True

    def _find_run(self) -> Any:
        if self._instances is None:
            return self._run
        return next(iter(self._instances.newest_first()), None)

    def end(self) -> None:
        """Looks for runs no longer; the program ends its own."""
        if self._instances is not None:
            self._instances.end()
