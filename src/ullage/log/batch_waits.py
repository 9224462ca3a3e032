"""How long a recorded program waited for its batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ullage.ground.errors import SnapshotError
from ullage.log import field_checks
from ullage.log.field_checks import Positions
from ullage.log.record_schema import ROWS

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BatchWaits:
    """Waits for batches of all steps, oldest first, as columns of some steps each.

    Attributes:
        num_workers: the most worker processes of a DataLoader; None: none was read.
        num_steps: (rows,) of each row.
        seconds: (rows,) of these steps.
        waited_s: (rows,) of which the program waited for a batch.
        idle_low_s, idle_high_s: (rows,) of which the GPU had no work, at least and at most.
    """

    num_workers: int | None
    num_steps: npt.NDArray[np.int64]
    seconds: Float64Array
    waited_s: Float64Array
    idle_low_s: Float64Array
    idle_high_s: Float64Array

    def __len__(self) -> int:
        return len(self.num_steps)


def parse_batch_waits(fields: Mapping[str, Any]) -> BatchWaits | None:
    """The field of a record; None: it has none.

    Raises:
        SnapshotError: it is damaged.
    """
    if fields.get("batch_waits") is None:
        return None
    waits = field_checks.typed(fields["batch_waits"], dict, "batch_waits")
    workers = waits.get("num_workers")
    rows = field_checks.read(tuple[Any, ...], waits.get("waits", ()), "waits")
    columns = field_checks.columns(rows, len(ROWS["waits"]), "batch_waits")
    return BatchWaits(
        None if workers is None else field_checks.size(workers, "num_workers"),
        field_checks.read(tuple[Positions], columns[1:2], "batch_waits")[0],
        *(_seconds_column(column) for column in columns[2:]),
    )


def _seconds_column(values: Sequence[object]) -> Float64Array:
    column = field_checks.read(tuple[float, ...], values, "batch_waits")
    if column and min(column) < 0:
        raise SnapshotError(f"batch_waits has {min(column)} seconds; expected 0 or more")
    return np.array(column, dtype=np.float64)
