"""The time of a step from a log that was made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ullage.clock.contention import Load
from ullage.clock.cost import Category, Cost
from ullage.clock.duration import Duration
from ullage.clock.given_work import CollectiveCall, GivenWork, KernelLaunch, Product
from ullage.clock.host import HostInterval
from ullage.clock.reading import given_work
from ullage.clock.simulation import HostCosts
from ullage.clock.spread import WAITING, slowest_of
from ullage.clock.step import Batch, measure_step
from ullage.clock.step_time import StepTime
from ullage.facts.gpus import find_gpu
from ullage.log.record_schema import WORK_MARKS
from ullage.log.work_log import ENTRY, EntryKind, WorkKind, WorkLog, WorkRow

GPU = find_gpu("h100-80gb")
NOTHING = HostInterval(*[HostCosts(0.0, 0.0)] * 3)
PRODUCT, KERNEL, MESSAGE, RIDDLE = range(4)
WORKS = (
    WorkRow(WorkKind.PRODUCT, 14, "", (8, 8, 8, 1, 2), b""),
    WorkRow(WorkKind.KERNEL, -1, "copy", (1, 1, 1, 128, 1, 512, 0, 0, 0, 0, 0, 0, 0, 0), b""),
    WorkRow(WorkKind.COLLECTIVE, -1, "", (0, 1024, 8), b""),
    WorkRow(WorkKind.KERNEL, -1, "riddle", (1, 1, 1, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), b""),
)


def cost_of(work: GivenWork) -> Cost:
    match work:
        case Product():
            return Cost(Duration(3.0, 4.0, 6.0, "table"), Category.MATRIX_PRODUCTS, "product", 1e12)
        case CollectiveCall():
            return Cost(Duration(5.0, 6.0, 7.0, "links"), Category.COMMUNICATION, "all-reduce")
        case KernelLaunch(name="copy"):
            return Cost(Duration(1.0, 1.0, 1.0, "bytes"), Category.MEMORY_BOUND, "copy")
    return Cost(Duration(0.5, 1.0, 9.0, "unknown"), Category.UNKNOWN, "riddle")


GIVEN = tuple(map(given_work, WORKS))
COSTS = tuple(map(cost_of, GIVEN))


def given(work: int, lane: int = 0, scope: int = -1) -> tuple[int, ...]:
    return (0, work, scope, 5, lane, EntryKind.GIVEN, 0)


def mark(name: str, number: int = 0) -> tuple[int, ...]:
    return (number, WORK_MARKS.index(name), -1, 0, 0, EntryKind.MARKED, 0)


def a_step(number: int) -> list[tuple[int, ...]]:
    return [
        mark("forward_begin"), given(PRODUCT, scope=0), given(KERNEL, scope=1), mark("forward_end"),
        mark("backward_begin"), given(MESSAGE, lane=9), given(PRODUCT, scope=0), given(RIDDLE),
        mark("backward_end"), mark("step", number),
    ]  # fmt: skip


def measure(rows: list[tuple[int, ...]], host: HostInterval = NOTHING) -> StepTime | None:
    log = WorkLog(0, np.array(rows, dtype=ENTRY), np.array([], dtype=ENTRY), WORKS)
    return measure_step(
        log,
        GPU,
        GIVEN,
        COSTS,
        host,
        modules=("layer", "norm"),
        batch=Batch(4, 1000),
        basis=["made up"],
    )


def of_two_steps() -> StepTime:
    time = measure([*a_step(1), *a_step(2)])
    assert time is not None
    return time


def test_a_step_is_an_interval() -> None:
    time = of_two_steps()
    # The stream of computation is the longer one: 4 + 1 + 4 + 1.
    assert time.extremes == (3.0 + 1.0 + 3.0 + 0.5, 10.0, 6.0 + 1.0 + 6.0 + 9.0)
    assert time.step.low_s < 7.5 and time.step.s == 10.0 and time.step.high_s > 20.0
    assert time.num_tokens == 1000 and time.num_samples == 4
    assert time.flops == 2e12
    assert time.utilisation is not None
    assert time.utilisation.s == pytest.approx(2e12 / 10.0 / time.peak_flops_per_s)


def test_where_the_time_goes() -> None:
    time = of_two_steps()
    kinds = {share.name: share for share in time.categories}
    assert kinds["matrix products"].busy.s == 8.0 and kinds["matrix products"].num == 2
    assert kinds["communication"].busy.s == 6.0 and kinds["communication"].exposed.s == 0.0
    assert sum(share.exposed.s for share in time.categories) + time.device_idle.s == 10.0
    assert {share.name: share.busy.s for share in time.parts} == {"forward": 5.0, "backward": 11.0}
    assert {share.name: share.busy.s for share in time.modules} == {
        "layer": 8.0,
        "norm": 1.0,
        "(no module)": 7.0,
    }
    assert [share.name for share in time.unknown] == ["riddle"]
    assert time.critical == "matrix products"
    assert "made up" in time.basis and "matrix products: table" in time.basis


def test_the_timeline() -> None:
    spans = of_two_steps().spans
    assert {(span.name, span.stream) for span in spans} == {
        ("product", 0), ("copy", 0), ("riddle", 0), ("all-reduce", 1),
    }  # fmt: skip
    assert sum(span.duration_s for span in spans if span.stream == 0) == 10.0
    assert all(span.position == 5 for span in spans)


def test_a_slow_host_leaves_the_device_idle() -> None:
    host = HostInterval(*[HostCosts(20.0, 20.0)] * 3)
    time = measure([*a_step(1), *a_step(2)], host)
    assert time is not None and time.step.s == 100.0 and time.critical == "the host"
    assert time.device_idle.s > 80.0


def test_the_only_step_begins_with_its_first_forward() -> None:
    building = [given(PRODUCT), given(PRODUCT)]
    time = measure([*building, *a_step(1)])
    assert time is not None and time.step.s == 10.0 and len(time.steps) == 1
    again = measure([*a_step(1), *a_step(2), *building, *a_step(1)])
    assert again is not None and again.step.s == 10.0
    assert measure([]) is None and measure(a_step(1)[:-1]) is None


def test_the_modules_take_all_of_a_step_and_what_the_device_waited_for() -> None:
    """The host gives a piece of work each 20 s, from 1 s before the step begins on."""
    assert of_two_steps().seconds_by_module() == {"layer": 8.0, "norm": 1.0, "(no module)": 1.0}
    host = HostInterval(*[HostCosts(20.0, 20.0)] * 3)
    slow = measure([*a_step(1), *a_step(2)], host)
    assert slow is not None
    # Layer from 19 to 23, norm from 39 to 40, message from 59 to 65, layer from 79 to 83, riddle
    # from 99 to 100; each takes what passes from the end before it to its own.
    assert slow.seconds_by_module() == {"layer": 41.0, "norm": 17.0, "(no module)": 42.0}


def test_a_step_that_ends_twice_ends_the_second_time() -> None:
    twice = [*a_step(1), *a_step(2), given(PRODUCT), mark("step", 2)]
    time = measure(twice)
    assert time is not None and time.step.s == 14.0 and len(time.steps) == 1


def test_where_the_count_begins_again_earlier_steps_were_none() -> None:
    rows = [*a_step(1), *a_step(2), *a_step(1), given(PRODUCT), *a_step(2)]
    time = measure(rows)
    assert time is not None and len(time.steps) == 1 and time.step.s == 14.0


def test_a_graph_takes_as_long_as_its_longest_stream() -> None:
    rows = [mark("step", 1), (3, 0, -1, 0, 0, EntryKind.GRAPH, 0), mark("step", 2)]
    captured = [(3, work, -1, 0, lane, EntryKind.CAPTURED, 0) for work, lane in
                ((PRODUCT, 0), (KERNEL, 0), (MESSAGE, 1))]  # fmt: skip
    log = WorkLog(0, np.array(rows, dtype=ENTRY), np.array(captured, dtype=ENTRY), WORKS)
    time = measure_step(log, GPU, GIVEN, COSTS, NOTHING)
    assert time is not None and time.extremes == (5.0, 6.0, 7.0) and time.flops == 1e12


def test_a_rank_of_a_job_waits_for_the_slowest_and_the_kinds_still_add_up() -> None:
    loaded = [
        replace(cost, load=Load(0.0, 0.0, "NVLink")) if isinstance(work, CollectiveCall) else cost
        for work, cost in zip(GIVEN, COSTS, strict=True)
    ]
    log = WorkLog(
        0, np.array([*a_step(1), *a_step(2)], dtype=ENTRY), np.array([], dtype=ENTRY), WORKS
    )
    of_eight = measure_step(log, GPU, GIVEN, loaded, NOTHING)
    of_many = measure_step(log, GPU, GIVEN, loaded, NOTHING, num_ranks=128)
    assert of_eight is not None and of_many is not None
    # The log's own communicator has 8 ranks; all 10 seconds are computed.
    assert of_eight.step.s == pytest.approx(10 * (1 + slowest_of(8)))
    assert of_many.step.s == pytest.approx(10 * (1 + slowest_of(128)))
    for time in (of_eight, of_many):
        for shares in (time.categories, time.parts, time.modules):
            total_s = sum(share.exposed.s for share in shares) + time.device_idle.s
            assert total_s == pytest.approx(time.step.s)
        assert WAITING in {share.name for share in time.categories}
