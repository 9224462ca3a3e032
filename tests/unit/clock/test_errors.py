"""Errors of independent sources are joined as such; what measurements say of that."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ullage.clock.contention import Load
from ullage.clock.cost import Category, Cost
from ullage.clock.duration import Duration, join_errors
from ullage.clock.given_work import GivenWork, Product
from ullage.clock.host import HostInterval
from ullage.clock.reading import given_work
from ullage.clock.simulation import HostCosts
from ullage.clock.spread import slowest_of
from ullage.clock.step import measure_step
from ullage.clock.step_time import StepTime
from ullage.clock.table import load_table
from ullage.clock.work import Kind, MatrixProduct
from ullage.facts.gpus import find_gpu
from ullage.log.record_schema import WORK_MARKS
from ullage.log.work_log import ENTRY, EntryKind, WorkKind, WorkLog, WorkRow

NOTHING = HostInterval(*[HostCosts(0.0, 0.0)] * 3)
STEP = WORK_MARKS.index("step")
ALIKE = 0.5  # the correlation of products in step.py
LIKE_GPUS = (("h100-80gb", "h200"), ("b200", "gb200"), ("b200", "b300"), ("gb200", "b300"))


def step_of(*categories: Category, width: float = 1.0, load: Load | None = None) -> StepTime:
    """A step of one piece of work of each kind, each of 8 to 10 to 14 s where `width` is 1."""
    works = tuple(
        WorkRow(WorkKind.PRODUCT, 14, "", (number + 1, 8, 8, 1, 2, *[0] * 9), b"")
        for number in range(len(categories))
    )
    given = [(0, work, -1, 0, 0, EntryKind.GIVEN, 0) for work in range(len(categories))]
    ends = [(number, STEP, -1, 0, 0, EntryKind.MARKED, 0) for number in (1, 2)]
    rows = [ends[0], *given, ends[1]]

    def cost_of(work: GivenWork) -> Cost:
        assert isinstance(work, Product)
        category = categories[work.m - 1]
        is_message = category is Category.COMMUNICATION
        return Cost(
            Duration(10 - 2 * width, 10.0, 10 + 4 * width, ""),
            category,
            f"{category.value} {work.m}",
            load=load if is_message else None,
        )

    log = WorkLog(0, np.array(rows, dtype=ENTRY), np.array([], dtype=ENTRY), works)
    given_works = tuple(map(given_work, works))
    costs = tuple(map(cost_of, given_works))
    time = measure_step(log, find_gpu("h100-80gb"), given_works, costs, NOTHING)
    assert time is not None
    return time


def errors_of(*categories: Category) -> tuple[float, float]:
    """What such a step may be off to either side, without the difference of GPUs of a kind."""
    time = step_of(*categories)
    low_s, likely_s, high_s = time.step
    assert likely_s == 10.0 * len(categories)
    assert time.extremes == tuple(len(categories) * end for end in (8.0, 10.0, 14.0))
    apart = 0.04 * likely_s
    return math.sqrt((likely_s - low_s) ** 2 - apart**2), math.sqrt(
        (high_s - likely_s) ** 2 - apart**2
    )


def test_of_one_source_all_errors_have_one_direction() -> None:
    assert errors_of(Category.MEMORY_BOUND, Category.MEMORY_BOUND) == pytest.approx((4.0, 8.0))
    assert errors_of(Category.ATTENTION, Category.CONVOLUTIONS) == pytest.approx((4.0, 8.0))
    assert errors_of(Category.MATRIX_PRODUCTS) == pytest.approx((2.0, 4.0))


def test_errors_of_two_sources_are_independent() -> None:
    found = errors_of(Category.MEMORY_BOUND, Category.ATTENTION)
    assert found == pytest.approx((math.sqrt(8), math.sqrt(32)))


def test_the_error_of_unknown_kernels_is_added() -> None:
    found = errors_of(Category.MEMORY_BOUND, Category.ATTENTION, Category.UNKNOWN)
    assert found == pytest.approx((math.sqrt(8) + 2.0, math.sqrt(32) + 4.0))


def test_half_of_the_error_of_products_is_common_to_all_shapes() -> None:
    _, above = errors_of(*[Category.MATRIX_PRODUCTS] * 4)
    assert above == pytest.approx(math.sqrt(0.5 * 16**2 + 0.5 * 4 * 16))


def test_the_slowest_gpu_of_a_job_counts() -> None:
    """GPUs of a kind are 8 % apart: half of it for one, and all of it where the others wait; of the
    10 seconds that are computed, a usual one of two waits 0.087 for the other.
    """
    alone = step_of(Category.MATRIX_PRODUCTS, width=0.0).step
    assert alone == pytest.approx((9.6, 10.0, 10.4))
    load = Load(0.0, 0.0, "network")
    job = step_of(Category.MATRIX_PRODUCTS, Category.COMMUNICATION, width=0.0, load=load).step
    assert job == pytest.approx((19.6, 20.0 + 10 * slowest_of(2), 20.8))


@pytest.mark.parametrize(("correlation", "size"), [(0.0, 5.0), (1.0, 7.0), (0.5, math.sqrt(37))])
def test_errors_are_joined_by_their_correlation(correlation: float, size: float) -> None:
    assert join_errors([3.0, -4.0], correlation) == pytest.approx(size)
    assert join_errors([], correlation) == 0.0


def common_share() -> float:
    """The share of the variance of matrix products that all shapes have in common, where the table
    of a GPU stands for that of a like one: two campaigns of measurements on other machines.
    """
    random = np.random.default_rng(1)
    sides = 2 ** random.uniform(10, 14.5, (500, 3))
    shapes = [MatrixProduct(*map(int, side)) for side in sides]
    common = every = 0.0
    for stands_in, gpu in LIKE_GPUS:
        table = load_table(stands_in, Kind.MATRIX_PRODUCT, "bfloat16")
        own = load_table(gpu, Kind.MATRIX_PRODUCT, "bfloat16")
        errors = [
            math.log(own.predict(shape).quotient / table.predict(shape).quotient)
            for shape in shapes
        ]
        common += float(np.mean(errors)) ** 2
        every += float(np.mean(np.square(errors)))
    return common / every


def test_the_correlation_is_that_of_measurements_on_like_gpus() -> None:
    assert common_share() == pytest.approx(ALIKE, abs=0.15)
