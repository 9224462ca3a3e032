"""MLflow: its page shows metrics whose names begin with "system/" beside its own of the machine;
their names end in units, and a megabyte is 10^6 bytes there.

With an identifier of the node (MLFLOW_SYSTEM_METRICS_NODE_ID, as
`mlflow.set_system_metrics_node_id` leaves it) that comes between, as MLflow has it.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from typing import Any

from ullage.record.trackers.background import Background
from ullage.record.trackers.figures import StepFigures
from ullage.record.trackers.tracker import NAMESPACE

_NODE = "MLFLOW_SYSTEM_METRICS_NODE_ID"
_MEGABYTE = 1e6


class MlflowTracker:
    """The active run of the thread in which steps end, or one that is given.

    MLflow's client waits for its server, for minutes where it does not answer: it is called in a
    thread of its own.
    """

    title = "MLflow"

    def __init__(self, run: Any = None) -> None:
        self._run = run
        self._background = Background()

    def log(self, figures: StepFigures) -> bool:
        """Queues a batch of metrics for the run."""
        mlflow: Any = sys.modules.get("mlflow")
        run = _active_run(mlflow) if self._run is None else self._run
        if run is None:
            return False
        node = os.environ.get(_NODE, "")
        prefix = f"system/{node}/{NAMESPACE}" if node else f"system/{NAMESPACE}"
        now_ms = int(time.time() * 1000)
        metrics = [
            mlflow.entities.Metric(f"{prefix}_{name}", value, now_ms, figures.step)
            for name, value in figures.values("megabytes", _MEGABYTE).items()
        ]
        client = mlflow.MlflowClient(mlflow.get_tracking_uri())
        self._background.hand(functools.partial(client.log_batch, run.info.run_id, metrics))
        return True

    def end(self) -> None:
        """Waits for the queue."""
        self._background.end()


def _active_run(mlflow: Any) -> Any:
    """Of this thread; None while MLflow is being imported, too."""
    find = getattr(mlflow, "active_run", None)
    return None if find is None else find()
