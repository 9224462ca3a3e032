"""Condenses NVIDIA's measured kernel times to the tables of the package, and measures the errors.

    pip download --no-deps aiconfigurator-core==0.12.0    # and unpack it
    python -m benchmarks.time.condense WHEEL-FOLDER       # needs pyarrow

A random fifth of the shapes of every table is left out before anything else, and serves the page
docs/results/time.md alone. Of the others a second fifth is left out for a moment, to weigh
the axes and to learn the width of the intervals; then it is put back.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.time.measurements import Measurements, read_all, read_twice
from benchmarks.time.page import write_page
from benchmarks.time.scores import Held, sample_of
from ullage.clock.grid import Floats, along_axis, fill
from ullage.clock.relatives import is_alike
from ullage.clock.table import HOLE, STEPS, Table, load_table, load_widths, table_names
from ullage.clock.work import Kind, Roof, roofline
from ullage.facts.gpus import find_gpu
from ullage.facts.gpus.peaks import peer_bytes_per_s

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "src" / "ullage" / "clock" / "tables"
SAMPLE = ROOT / "tests" / "unit" / "clock" / "held_out.csv"
SEED = 19
SHARE = 0.2
# The interval holds the middle nine tenths of the errors.
NINE_TENTHS = (0.05, 0.95)
# Rates of a GPU for which the catalogue states none: those of the wheel's systems/*.yaml.
OPS_PER_S = {
    "rtx-pro-6000-server": {
        "bfloat16": 503.8e12, "float8_e4m3fn": 1007.6e12, "float4_e2m1fn_x2": 2015.2e12,
    },
}  # fmt: skip
FIELDS = {"bfloat16": "bf16", "float8_e4m3fn": "fp8", "float4_e2m1fn_x2": "fp4"}
# Of fewer errors, the quantiles mean little.
FEW = 100
# The measurements in float8 have the quantisation of the left operand in them. Beside a product of
# so many columns it takes little.
MANY_COLUMNS = 4096
# Products and caches of at least this size are streamed from memory; they exceed every L2 cache.
STREAMED_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Split:
    """Measurements on their grid.

    Attributes:
        axes: the values of each axis.
        logs: the logarithm of measured time by roofline; NaN: not measured.
        is_held: left out.
        cells: the place of each measurement.
    """

    measurements: Measurements
    roof: Roof
    axes: list[list[float]]
    logs: Floats
    is_held: np.ndarray
    cells: tuple[np.ndarray, ...]


def split(measurements: Measurements) -> Split:
    """Puts measurements on a grid, and chooses those that are left out."""
    points = np.array([work.point for work in measurements.works])
    axes = [np.unique(column) for column in points.T]
    cells = tuple(np.searchsorted(a, c) for a, c in zip(axes, points.T, strict=True))
    roof = roof_of(measurements)
    logs = np.full([len(axis) for axis in axes], np.nan)
    pairs = zip(measurements.works, measurements.seconds, strict=True)
    logs[cells] = [np.log2(seconds / roofline(work, roof)) for work, seconds in pairs]
    is_held = np.zeros(logs.shape, dtype=bool)
    is_held[cells] = np.random.default_rng(SEED).random(len(points)) < SHARE
    return Split(measurements, roof, [list(axis) for axis in axes], logs, is_held, cells)


def roof_of(measurements: Measurements) -> Roof:
    """The rates to which a table refers: the catalogue's, and the fastest kernel as the start."""
    gpu, start = find_gpu(measurements.gpu), min(measurements.seconds)
    if measurements.precision == "bytes":
        return Roof(0.0, peer_bytes_per_s(gpu, 8), start)
    ops = getattr(gpu.tensor_ops_per_s, FIELDS[measurements.precision])
    if ops is None:
        ops = OPS_PER_S[gpu.slug][measurements.precision]
    return Roof(float(ops), float(gpu.bandwidth_bytes_per_s), start)


def condense(part: Split, of_few: Sequence[float]) -> None:
    """Writes the table of what was not left out.

    Args:
        of_few: the least interval of a table of few shapes.
    """
    known = np.where(part.is_held, np.nan, part.logs)
    hidden = ~np.isnan(known) & (np.random.default_rng(SEED + 1).random(known.shape) < SHARE)
    shown = np.where(hidden, np.nan, known)
    weights = weigh_axes(part.axes, shown, known)
    inside = fill(part.axes, shown, weights)
    errors = (known - inside.values)[hidden & ~inside.is_edge]
    is_small = len(errors) < FEW
    if is_small:
        errors = errors_one_by_one(part.axes, known, weights)
    between, beyond = width_of(errors), width_of(edge_errors(part.axes, known, weights))
    if is_small:
        between = [min(between[0], of_few[0]), max(between[1], of_few[1])]
    facts = {
        "kernel": part.measurements.kernel,
        "source": part.measurements.source,
        "roof": list(part.roof),
        "inside": between,
        "edge": [min(between[0], beyond[0]), max(between[1], beyond[1])],
        "weights": weights,
    }
    steps = np.where(np.isnan(known), HOLE, np.round(known * STEPS)).astype(np.int16)
    name = part.measurements
    path = TABLES / name.gpu / f"{name.kind.value}.{name.precision}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {f"axis_{n}": np.array(axis) for n, axis in enumerate(part.axes)}
    np.savez_compressed(path, quotients=steps, facts=np.array(json.dumps(facts)), **arrays)


def weigh_axes(axes: Sequence[Sequence[float]], shown: Floats, known: Floats) -> list[float]:
    """How much each axis counts: one by the square of the ninth decile of its errors."""
    weights = []
    for number, axis in enumerate(axes):
        errors = along_axis(shown, np.log2(axis), number).values - known
        errors = np.abs(errors[np.isfinite(errors)])
        weights.append(
            float(1 / max(np.quantile(errors, 0.9), 1e-3) ** 2) if len(errors) > 20 else 0.0
        )
    total = sum(weights) or 1.0
    return [round(max(weight / total, 0.01), 3) for weight in weights]


def errors_one_by_one(
    axes: Sequence[Sequence[float]], known: Floats, weights: list[float]
) -> Floats:
    """The errors of each shape when it alone is left out, for tables of few shapes."""
    errors = []
    for cell in np.argwhere(~np.isnan(known)):
        shown = known.copy()
        shown[tuple(cell)] = np.nan
        errors.append(known[tuple(cell)] - fill(axes, shown, weights).values[tuple(cell)])
    return np.array(errors)


def width_of_few(parts: Iterable[Split]) -> list[float]:
    """The interval of all tables of few shapes together: of one alone it hangs on two or three."""
    errors = []
    for part in parts:
        known = np.where(part.is_held, np.nan, part.logs)
        if np.isfinite(known).sum() * SHARE < FEW:
            errors.append(errors_one_by_one(part.axes, known, [1.0] * known.ndim))
    return width_of(np.concatenate(errors))


def edge_errors(axes: Sequence[Sequence[float]], known: Floats, weights: list[float]) -> Floats:
    """The errors where the first or the last value of an axis is left out, about an octave."""
    errors = []
    for number, end in itertools.product(range(known.ndim), (0, -1)):
        if known.shape[number] < 4:
            continue
        outermost = np.zeros(known.shape, dtype=bool)
        np.moveaxis(outermost, number, 0)[end] = True
        outermost &= ~np.isnan(known)
        shown = np.where(outermost, np.nan, known)
        if outermost.any() and not np.isnan(shown).all():
            errors.append((known - fill(axes, shown, weights).values)[outermost])
    return np.concatenate(errors)


def width_of(errors: Floats) -> list[float]:
    """The factors between which nine in ten of the errors lie, given as logarithms to base 2."""
    return [round(float(2.0 ** np.quantile(errors, part)), 4) for part in NINE_TENTHS]


def write_widths(parts: Iterable[Split]) -> None:
    """Measures what the fallbacks miss, on what was not left out."""
    known = {
        (part.measurements.gpu, part.measurements.kind, part.measurements.precision): part
        for part in parts
    }
    alike, other, precisions, constant = [], [], [], []
    for (gpu, kind, precision), part in known.items():
        for (of_gpu, of_kind, of_precision), of_part in known.items():
            if kind is not of_kind:
                continue
            if precision == of_precision and gpu != of_gpu:
                errors = alike if is_alike(find_gpu(gpu), find_gpu(of_gpu)) else other
                errors.append(transfer(of_part, part))
            if gpu == of_gpu and (of_precision, precision) == ("bfloat16", "float8_e4m3fn"):
                precisions.append(transfer(of_part, part, least_n=MANY_COLUMNS))
        if kind is Kind.MATRIX_PRODUCT:
            constant.append(constant_rate_errors(part, streaming(known, gpu)[1]))
    document = {
        "same_architecture": width_of(np.concatenate(alike)),
        "other_architecture": width_of(np.concatenate(other)),
        "other_precision": width_of(np.concatenate(precisions)),
        "constant_rate": width_of(np.concatenate(constant)),
        "streaming": {gpu: streaming(known, gpu) for gpu in sorted({key[0] for key in known})},
        "start_s": {
            gpu: known[gpu, Kind.MATRIX_PRODUCT, "bfloat16"].roof.start_s
            for gpu in sorted({key[0] for key in known})
        },
    }
    (TABLES / "widths.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def transfer(source: Split, target: Split, *, least_n: int = 0) -> Floats:
    """The errors where one table's quotients stand for another's, at shapes that both have.

    Args:
        least_n: of matrix products, only those of at least so many columns.
    """
    known = {
        work.point: log
        for work, log in zip(source.measurements.works, source.logs[source.cells], strict=True)
    }
    held = target.is_held[target.cells]
    pairs = zip(target.measurements.works, target.logs[target.cells], held, strict=True)
    return np.array(
        [log - known[work.point] for work, log, left_out in pairs
         if not left_out and work.point in known and getattr(work, "n", least_n) >= least_n]
    )  # fmt: skip


def constant_rate_errors(part: Split, streamed: float) -> Floats:
    """The errors of one rate and one start, fitted to square products."""
    works, seconds = part.measurements.works, np.array(part.measurements.seconds)
    ideal = np.array([work.ops for work in works]) / part.roof.ops_per_s
    moved = np.array([work.num_bytes for work in works]) / part.roof.bytes_per_s
    is_square = np.array([work.m == work.n == work.k and work.m >= 1024 for work in works])
    start, slope = fit_line(ideal[is_square], seconds[is_square])
    predicted = np.maximum(start + slope * ideal, part.roof.start_s + moved / streamed)
    is_large = np.array([work.m >= 128 for work in works])
    return np.log2(seconds / predicted)[is_large]


def fit_line(ideal: Floats, seconds: Floats) -> tuple[float, float]:
    """The start, not below 0, and the slope, by least squares of the relative errors."""
    start, slope = np.linalg.lstsq(
        np.stack([1 / seconds, ideal / seconds], axis=1), np.ones(len(seconds)), rcond=None
    )[0]
    if start > 0:
        return float(start), float(slope)
    return 0.0, float((ideal / seconds).sum() / ((ideal / seconds) ** 2).sum())


def streaming(known: dict[tuple[str, Kind, str], Split], gpu: str) -> list[float]:
    """The shares of the bandwidth at which kernels stream: first decile, median, ninth decile."""
    shares = []
    for kind in (Kind.MATRIX_PRODUCT, Kind.ATTENTION_DECODE):
        part = known.get((gpu, kind, "bfloat16"))
        if part is None:
            continue
        pairs = zip(part.measurements.works, part.measurements.seconds, strict=True)
        shares += [
            work.num_bytes / part.roof.bytes_per_s / (seconds - part.roof.start_s)
            for work, seconds in pairs
            if work.num_bytes >= STREAMED_BYTES
            and work.ops / part.roof.ops_per_s < 0.2 * work.num_bytes / part.roof.bytes_per_s
        ]
    return [round(float(np.quantile(shares, part)), 4) for part in (0.1, 0.5, 0.9)]


def held_out(part: Split) -> list[Held]:
    """What was left out, with what the written table says of it."""
    table: Table = load_table(
        part.measurements.gpu, part.measurements.kind, part.measurements.precision
    )
    held = part.is_held[part.cells]
    values = table.grid.values[part.cells]
    rows = zip(part.measurements.works, part.measurements.seconds, held, values, strict=True)
    return [
        Held(table, work, seconds, roofline(work, part.roof) * 2.0**value,
             roofline(work, part.roof._replace(start_s=0.0)))
        for work, seconds, is_held, value in rows if is_held
    ]  # fmt: skip


def planes_out(part: Split) -> Floats:
    """The relative errors where whole values of n and k are left out, a quarter of each."""
    rng = np.random.default_rng(SEED + 2)
    known = np.where(part.is_held, np.nan, part.logs)
    hidden = np.zeros(known.shape, dtype=bool)
    for number in (1, 2):
        count = known.shape[number]
        chosen = rng.choice(np.arange(1, count - 1), count // 4, replace=False)
        np.moveaxis(hidden, number, 0)[chosen] = True
    hidden &= ~np.isnan(known)
    weights = [1.0] * known.ndim
    predicted = fill(part.axes, np.where(hidden, np.nan, known), weights).values
    return (2.0 ** (predicted - known) - 1)[hidden]


def jumps(wheel: Path) -> str:
    """How far two measurements of one shape lie apart, and those of neighbouring shapes."""
    first, second = (
        dict(zip(measured.works, measured.seconds, strict=True))
        for measured in read_twice(wheel, "h100-80gb")
    )
    apart = [abs(second[work] / first[work] - 1) for work in first if work in second]
    longer = [
        seconds / first[replace(work, m=256)] - 1
        for work, seconds in first.items()
        if work.m == 257 and replace(work, m=256) in first
    ]
    of_random = [second[work] / s - 1 for work, s in first.items() if s > 1e-3 and work in second]
    (middle, ninth), (of_row, most) = (np.quantile(part, [0.5, 0.9]) for part in (apart, longer))
    return (
        f"of {len(apart):,} products in bfloat16 on an H100, two measurements of\ntorch's linear "
        f"layer, with vLLM and with SGLang, differ by {100 * middle:.1f} % in the median and "
        f"{100 * ninth:.1f} % at the\nninth decile; of 1 ms and more, those of random numbers "
        f"(SGLang) take {100 * np.median(of_random):.1f} % longer in the median.\n"
        f"Products of 257 rows take {100 * of_row:.1f} % "
        f"(median) and {100 * most:.1f} % (ninth decile) longer than those of 256."
    )


def main(wheel: Path) -> None:
    """Writes the tables, the sample for the tests, and the page."""
    parts = [split(measurements) for measurements in read_all(wheel)]
    of_few = width_of_few(parts)
    for part in parts:
        condense(part, of_few)
        print(part.measurements.gpu, part.measurements.kind.value, part.measurements.precision)
    write_widths(parts)
    for cached in (table_names, load_table, load_widths):
        cached.cache_clear()
    held = [row for part in parts for row in held_out(part)]
    SAMPLE.parent.mkdir(parents=True, exist_ok=True)
    SAMPLE.write_text(sample_of(held, SEED), encoding="utf-8")
    planes = {
        (part.measurements.gpu, part.measurements.precision): planes_out(part)
        for part in parts
        if part.measurements.kind is Kind.MATRIX_PRODUCT
    }
    write_page(held, planes, jumps(wheel))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
