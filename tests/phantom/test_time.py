"""The time of a step on the phantom: how parts of it relate, and that it changes nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ullage.clock import MatrixProduct, matrix_product
from ullage.facts.gpus import find_gpu

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

SIZE = 4096
TIMED = ("--time",)


@pytest.fixture(scope="module")
def step_s(run_program: RunProgram) -> Callable[..., list[float]]:
    """[low, likely, high] of a case of clocks.py."""

    def run(case: str, *options: str) -> list[float]:
        outcome = run_program("clocks.py", case, options=(*TIMED, *options))
        assert outcome.exit_code == 0, outcome.stderr
        seconds: list[float] = outcome.document["time"]["step_s"]
        return seconds

    return run


def products_s(num: int) -> float:
    """What so many products of clocks.py take, by the table."""
    work = MatrixProduct(SIZE, SIZE, SIZE)
    return num * matrix_product(find_gpu("h100-80gb"), work, "bfloat16").s


def test_products_take_as_long_as_the_table_says(step_s: Callable[..., list[float]]) -> None:
    more = step_s("products")[1] - step_s("nothing")[1]
    assert more == pytest.approx(products_s(8), rel=0.02)


def test_streams_share_the_device(step_s: Callable[..., list[float]]) -> None:
    """They share the device, but in the lower bound."""
    nothing, overlaps = step_s("nothing"), step_s("two_streams")
    assert overlaps[1] - nothing[1] == pytest.approx(products_s(16), rel=0.03)
    assert overlaps[0] - nothing[0] < products_s(8) * 1.1
    assert step_s("one_after_another")[1] == pytest.approx(overlaps[1], rel=0.03)


def test_a_graph_takes_as_long_as_its_kernels(step_s: Callable[..., list[float]]) -> None:
    more = step_s("graph")[1] - step_s("nothing")[1]
    assert more == pytest.approx(products_s(8), rel=0.03)


def test_many_small_kernels_hang_on_the_host(step_s: Callable[..., list[float]]) -> None:
    more = step_s("many_small")[1] - step_s("nothing")[1]
    assert 200 * 2e-6 < more < 200 * 12e-6


def test_a_fused_step_moves_what_it_moves_for_few_parameters(
    step_s: Callable[..., list[float]],
) -> None:
    """Each of 160 parameters is five operands of a launch: all count. Four lists are read and three
    written, of 640 MiB each.
    """
    many = step_s("fused_of_many")[1]
    assert many == pytest.approx(step_s("fused_of_few")[1], rel=0.03)
    at_full_rate = 7 * (640 << 20) / find_gpu("h100-80gb").bandwidth_bytes_per_s
    assert many - step_s("nothing")[1] > 0.9 * at_full_rate


def test_intervals_are_ordered_and_the_parts_add_up(run_program: RunProgram) -> None:
    time = run_program("clocks.py", "products", options=TIMED).document["time"]
    low, likely, high = time["step_s"]
    assert 0 < low <= likely <= high
    alone = sum(kind["exposed_s"][1] for kind in time["kinds"])
    assert alone + time["device_idle_s"][1] == pytest.approx(likely, rel=1e-6)
    assert time["unknown"] == [] and time["utilisation"][1] < 1
    assert time["samples_per_s"][1] == pytest.approx(SIZE / likely)


@pytest.mark.parametrize("program", ["clocks.py", "streams.py", "conv_net.py"])
def test_nothing_else_changes(run_program: RunProgram, program: str) -> None:
    """Events of the allocator and peaks are equal with and without the clock. (Where a network's
    backward runs beside the main thread, the order of frees hangs on the processor.)
    """
    words = {"clocks.py": ("products",), "streams.py": ("prefetch",)}.get(program, ())
    plain = run_program(program, *words)
    timed = run_program(program, *words, options=TIMED)
    assert plain.exit_code == timed.exit_code == 0, timed.stderr
    before, after = plain.record.events, timed.record.events
    for column in ("address", "size_bytes", "reserved_bytes", "device", "kind", "scope"):
        values = getattr(before, column), getattr(after, column)
        if program == "conv_net.py":
            values = np.sort(values[0]), np.sort(values[1])
        assert np.array_equal(*values), column
    assert {
        name: value for name, value in timed.device.items() if name != "snapshot"
    } == plain.device


def test_two_runs_are_alike(run_program: RunProgram) -> None:
    first = run_program("clocks.py", "products", options=TIMED).document["time"]
    again = run_program("clocks.py", "products", options=TIMED, turn=1).document["time"]
    assert first == again


def test_a_run_that_is_not_asked_tells_no_time(run_program: RunProgram) -> None:
    outcome = run_program("clocks.py", "products")
    assert outcome.document.get("time") is None and outcome.record.work_log is None


@pytest.mark.slow
@pytest.mark.fresh
def test_the_programs_own_clocks_follow(run_program: RunProgram) -> None:
    """Within 1 % of the clock's: events, perf_counter, time."""
    outcome = run_program("clocks.py", "measure", options=("--clock", "virtual"))
    told = outcome.printed
    likely = outcome.document["time"]["step_s"][1]
    for clock in ("events", "perf_counter", "perf_counter_ns", "time"):
        assert told[clock] == pytest.approx(likely, rel=0.01), clock
    assert told["sleep"] == pytest.approx(0.2, rel=0.01)
    assert told["thread"] < 60  # another thread's sleep moves the clock as the real one


@pytest.mark.slow
@pytest.mark.fresh
def test_clocks_are_real_without_being_asked(run_program: RunProgram) -> None:
    outcome = run_program("clocks.py", "measure", options=TIMED)
    assert outcome.exit_code == 0 and outcome.printed["sleep"] >= 0.2
