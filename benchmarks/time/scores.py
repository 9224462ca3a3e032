"""The errors of predicted times on shapes that were left out, and the sample that tests read."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.time.measurements import Work
from ullage.clock.table import Table
from ullage.clock.work import Kind, MatrixProduct

FIELDS = (
    "gpu", "kind", "precision", "m", "n", "k", "itemsize", "batch", "heads", "kv_heads",
    "head_dim", "q_len", "kv_len", "num_bytes", "num_gpus", "seconds",
)  # fmt: skip
SAMPLE_OF_A_GPU = 200


@dataclass(frozen=True, slots=True)
class Held:
    """A measured shape that the tables do not have."""

    table: Table
    work: Work
    seconds: float
    predicted: float
    by_rates: float


class Score(NamedTuple):
    """Errors over shapes: the median and the ninth decile of the relative error, the same of the
    roofline at the makers' rates, and the share that the interval holds.
    """

    count: int
    median: float
    p90: float
    roofline_median: float
    roofline_p90: float
    inside: float


def score(rows: Sequence[Held]) -> Score:
    """The score of some shapes."""
    seconds = np.array([row.seconds for row in rows])
    errors = np.abs(np.array([row.predicted for row in rows]) / seconds - 1)
    of_rates = np.abs(np.array([row.by_rates for row in rows]) / seconds - 1)
    widths = [row.table.predict(row.work).width for row in rows[:: max(1, len(rows) // 1000)]]
    some = rows[:: max(1, len(rows) // 1000)]
    inside = [
        width.low <= row.seconds / row.predicted <= width.high
        for row, width in zip(some, widths, strict=True)
    ]
    return Score(
        len(rows),
        *(float(np.quantile(part, q)) for part in (errors, of_rates) for q in (0.5, 0.9)),
        float(np.mean(inside)),
    )


def sample_of(rows: Sequence[Held], seed: int) -> str:
    """As CSV, a random sample of each GPU, shared evenly among its tables."""
    rng = np.random.default_rng(seed)
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n", restval="")
    writer.writeheader()
    for gpu in sorted({row.table.gpu for row in rows}):
        tables: dict[tuple[Kind, str], list[Held]] = {}
        for row in rows:
            if row.table.gpu == gpu:
                tables.setdefault((row.table.kind, row.table.precision), []).append(row)
        for (kind, precision), of_table in tables.items():
            count = min(SAMPLE_OF_A_GPU // len(tables), len(of_table))
            for place in sorted(rng.choice(len(of_table), count, replace=False)):
                row = of_table[place]
                fields = {name: value for name, value in asdict(row.work).items() if name in FIELDS}
                if fields.get("batch") == 1 and isinstance(row.work, MatrixProduct):
                    del fields["batch"]
                facts = {"gpu": gpu, "kind": kind.value, "precision": precision}
                writer.writerow({**fields, **facts, "seconds": f"{row.seconds:.4g}"})
    return text.getvalue()


def is_long(row: Held, bound: float = 20e-6) -> bool:
    """Whether a kernel takes long enough that its start is a small part."""
    return row.seconds >= bound
