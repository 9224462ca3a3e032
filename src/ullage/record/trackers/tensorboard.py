"""TensorBoard: tags with a slash, whose first part groups the charts; memory in GiB, as the axes
show the values as they are.

TensorBoard knows no active run: the figures go to the newest writer that is open, of those that the
program has made since the recording began, or to the one that is given.
"""

from __future__ import annotations

from typing import Any

from ullage.record.patches import Patches
from ullage.record.trackers.figures import StepFigures
from ullage.record.trackers.instances import Instances
from ullage.record.trackers.tracker import NAMESPACE

_GIB = 2.0**30
_CLASSES = {
    "torch.utils.tensorboard.writer": "SummaryWriter",
    "tensorboardX.writer": "SummaryWriter",
}


class TensorBoardTracker:
    """Writes scalars.

    Args:
        patches: where new writers are noted.
        writer: the one; None: the newest.
    """

    title = "TensorBoard"

    def __init__(self, patches: Patches, writer: Any = None) -> None:
        self._writer = writer
        self._instances = Instances(patches, _CLASSES) if writer is None else None

    def log(self, figures: StepFigures) -> bool:
        """Queues the scalars in the writer, which writes files in a thread of its own."""
        writer = self._find_writer()
        if writer is None:
            return False
        for name, value in figures.values("gib", _GIB).items():
            writer.add_scalar(f"{NAMESPACE}/{name}", value, figures.step)
        return True

    def _find_writer(self) -> Any:
        if self._instances is None:
            return self._writer
        return next((each for each in self._instances.newest_first() if _is_open(each)), None)

    def end(self) -> None:
        """Looks for writers no longer; the program closes its own."""
        if self._instances is not None:
            self._instances.end()


def _is_open(writer: Any) -> bool:
    """A writer that is closed has no files; one that is written to after that begins a new file."""
    return getattr(writer, "all_writers", writer) is not None
