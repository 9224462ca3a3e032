"""The tables of measured times, as files of the package.

`benchmarks/time/condense.py` makes them of NVIDIA's measurements; tables/NOTICE says whose they
are. A file holds the quotient of measured time and roofline, as a logarithm in steps of 1/128
octave (0.5 %), on a grid of shapes.

>>> load_table("h100-80gb", Kind.MATRIX_PRODUCT, "bfloat16").kernel
'torch.nn.functional.linear'
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

import numpy as np

from ullage.clock.duration import Width
from ullage.clock.grid import Floats, Grid, fill
from ullage.clock.work import Attention, Collective, Kind, MatrixProduct, Roof, roofline
from ullage.ground.errors import SpecError

STEPS: Final = 128
"""Steps of an octave in a file."""
HOLE: Final = -32768
"""In a file: nothing was measured."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction of a table for a kernel.

    Attributes:
        quotient: how many times the roofline's seconds it takes.
        width: the interval around it.
        outside: how far it lies outside of the measured shapes, in octaves.
    """

    quotient: float
    width: Width
    outside: float


@dataclass(frozen=True, slots=True)
class Table:
    """Measured times of one kind of work in one precision on one GPU.

    Attributes:
        gpu: its name in the catalogue.
        kind, precision: of the work.
        kernel: what NVIDIA calls the kernel that was measured.
        source: the file of the wheel.
        roof: the rates that the quotients refer to.
        inside: the interval between measured shapes.
        edge: the interval one octave outside of them.
        num_shapes: how many measured shapes it holds.
        grid: the logarithms of the quotients.
    """

    gpu: str
    kind: Kind
    precision: str
    kernel: str
    source: str
    roof: Roof
    inside: Width
    edge: Width
    num_shapes: int
    grid: Grid

    def predict(self, work: MatrixProduct | Attention | Collective) -> Prediction:
        """Predicts a kernel's time."""
        value, outside = self.grid.at(self._folded(work.point))
        width = self.edge.widened(max(1.0, outside)) if outside else self.inside
        return Prediction(2.0**value, width, outside)

    def seconds(self, work: MatrixProduct | Attention | Collective) -> float:
        """The likely seconds of a kernel on the table's own GPU."""
        return roofline(work, self.roof) * self.predict(work).quotient

    def _folded(self, point: tuple[float, ...]) -> tuple[float, ...]:
        """Attention treats more heads like more sequences: heads beyond the table count as such."""
        if self.kind not in (Kind.ATTENTION_FORWARD, Kind.ATTENTION_DECODE):
            return point
        head_dim, group, kv_heads, batch, length = point
        most = 2.0 ** float(self.grid.axes[2][-1])
        excess = max(1.0, kv_heads / most)
        return head_dim, group, kv_heads / excess, batch * excess, length


@dataclass(frozen=True, slots=True)
class Widths:
    """The errors of what is done where there is no table, each measured between GPUs that have one.

    Attributes:
        same_architecture: a table stands for another GPU of its architecture.
        other_architecture: it stands for a GPU of another one.
        other_precision: a table stands for another precision of the same GPU.
        constant_rate: one rate and one start, fitted to square products, stand for all shapes.
        streaming: by GPU, the shares of the stated bandwidth (low, likely, high) that kernels reach
            which read much more than the caches hold.
        start_s: by GPU, the time of its fastest kernel.
    """

    same_architecture: Width
    other_architecture: Width
    other_precision: Width
    constant_rate: Width
    streaming: Mapping[str, tuple[float, float, float]]
    start_s: Mapping[str, float]


@cache
def table_names() -> tuple[tuple[str, Kind, str], ...]:
    """The tables that there are: GPU, kind of work, precision."""
    names = []
    for folder in resources.files("ullage.clock").joinpath("tables").iterdir():
        if folder.is_dir():
            for file in folder.iterdir():
                kind, _, precision = file.name.removesuffix(".npz").rpartition(".")
                names.append((folder.name, Kind(kind), precision))
    return tuple(sorted(names, key=lambda name: (name[0], name[1].value, name[2])))


@cache
def load_table(gpu: str, kind: Kind, precision: str) -> Table:
    """Reads a table and fills its holes, which takes some hundredths of a second.

    Raises:
        SpecError: there is no such table.
    """
    path = resources.files("ullage.clock").joinpath("tables", gpu, f"{kind.value}.{precision}.npz")
    if not path.is_file():
        raise SpecError(f"there is no table of {kind.value} in {precision} for {gpu!r}")
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        facts: dict[str, Any] = json.loads(str(arrays["facts"]))
        steps = arrays["quotients"]
        axes = [arrays[f"axis_{number}"].astype(np.float64) for number in range(steps.ndim)]
    values: Floats = np.where(steps == HOLE, np.nan, steps / STEPS)
    return Table(
        gpu=gpu,
        kind=kind,
        precision=precision,
        kernel=facts["kernel"],
        source=facts["source"],
        roof=Roof(*facts["roof"]),
        inside=Width(*facts["inside"]),
        edge=Width(*facts["edge"]),
        num_shapes=int((steps != HOLE).sum()),
        grid=fill([list(axis) for axis in axes], values, facts["weights"]),
    )


@cache
def load_widths() -> Widths:
    """Reads the errors of the fallbacks."""
    path = resources.files("ullage.clock").joinpath("tables", "widths.json")
    fields = json.loads(path.read_text(encoding="utf-8"))
    return Widths(
        same_architecture=Width(*fields["same_architecture"]),
        other_architecture=Width(*fields["other_architecture"]),
        other_precision=Width(*fields["other_precision"]),
        constant_rate=Width(*fields["constant_rate"]),
        streaming={name: tuple(shares) for name, shares in fields["streaming"].items()},
        start_s=fields["start_s"],
    )
