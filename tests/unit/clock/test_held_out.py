"""The error on measured shapes that the tables do not have: a sample of 200 for each GPU."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ullage.clock.duration import join_errors
from ullage.clock.table import Table, load_table, table_names
from ullage.clock.work import Attention, Collective, Kind, MatrixProduct, roofline

SAMPLE = Path(__file__).with_name("held_out.csv")
GPUS = sorted({name[0] for name in table_names()})
Work = MatrixProduct | Attention | Collective
Rows = list[tuple[Table, Work, float]]


def work_of(row: dict[str, str]) -> Work:
    kind = Kind(row["kind"])
    if kind is Kind.MATRIX_PRODUCT:
        m, n, k = (int(row[name]) for name in "mnk")
        return MatrixProduct(m, n, k, itemsize=float(row["itemsize"]))
    if kind in (Kind.ATTENTION_FORWARD, Kind.ATTENTION_DECODE):
        names = ("batch", "heads", "kv_heads", "head_dim", "q_len", "kv_len")
        return Attention(*(int(row[name]) for name in names))
    return Collective(kind, float(row["num_bytes"]), int(row["num_gpus"]))


@cache
def sample(gpu: str) -> Rows:
    """The rows of a GPU: the tables of all of them take seconds to load."""
    with SAMPLE.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == gpu]
    return [
        (load_table(gpu, Kind(row["kind"]), row["precision"]), work_of(row), float(row["seconds"]))
        for row in rows
    ]


@pytest.mark.parametrize("gpu", GPUS)
def test_errors_are_small_on_shapes_that_were_left_out(gpu: str) -> None:
    rows = sample(gpu)
    assert len(rows) >= 100
    ratios = np.array([table.seconds(work) / seconds for table, work, seconds in rows])
    errors = np.abs(ratios - 1)
    assert np.median(errors) < 0.06
    assert np.quantile(errors, 0.9) < 0.30
    assert abs(np.median(ratios) - 1) < 0.03


@pytest.mark.parametrize("gpu", GPUS)
def test_intervals_hold_what_was_left_out(gpu: str) -> None:
    rows = sample(gpu)
    inside = []
    for table, work, seconds in rows:
        width, predicted = table.predict(work).width, table.seconds(work)
        inside.append(predicted * width.low <= seconds <= predicted * width.high)
    assert np.mean(inside) > 0.8


@pytest.mark.parametrize("gpu", GPUS)
def test_the_roofline_is_worse(gpu: str) -> None:
    rows = sample(gpu)
    by_table = [abs(table.seconds(work) / seconds - 1) for table, work, seconds in rows]
    by_rates = [
        abs(roofline(work, table.roof._replace(start_s=0)) / seconds - 1)
        for table, work, seconds in rows
    ]
    assert np.median(by_table) < 0.2 * np.median(by_rates)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("num_shapes", [2, 8, 20])
def test_joined_intervals_hold_sums_of_left_out_kernels(gpu: str, num_shapes: int) -> None:
    """Four in five or more of sums of products and attention, each with a random share of the sum,
    none of which the tables have. Errors of products are joined as the clock does (step.py).
    """
    random = np.random.default_rng(3)
    rows = sample(gpu)
    kinds = [
        [row for row in rows if row[0].kind is kind and row[2] > 2e-5]
        for kind in (Kind.MATRIX_PRODUCT, Kind.ATTENTION_FORWARD)
    ]
    inside = [_holds(random, kinds, num_shapes) for _ in range(300)]
    assert np.mean(inside) >= 0.8


def _holds(random: np.random.Generator, kinds: list[Rows], num_shapes: int) -> bool:
    ratios, below, above = 0.0, [], []
    for rows, correlation in zip(kinds, (0.5, 1.0), strict=True):
        shares = random.dirichlet(np.ones(num_shapes))
        ends = []
        for share, place in zip(shares, random.integers(len(rows), size=num_shapes), strict=True):
            table, work, seconds = rows[place]
            width = table.predict(work).width
            ratios += share * (seconds / table.seconds(work) - 1)
            ends.append((share * (1 - width.low), share * (width.high - 1)))
        below.append(join_errors([low for low, _ in ends], correlation))
        above.append(join_errors([high for _, high in ends], correlation))
    return -sum(below) <= ratios <= sum(above)
