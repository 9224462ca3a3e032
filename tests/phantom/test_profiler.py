"""PyTorch's profiler under `--clock virtual`: times of the device, by the clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]
RunProgram = Callable[..., Any]

VIRTUAL = ("--clock", "virtual")
MARK = "[ullage phantom]"
NUM_STEPS = 3  # of profiles.py


@pytest.fixture(scope="module")
def profiled(run_program: RunProgram) -> Callable[..., Any]:
    """What a case of profiles.py says, and the section "time" of the run's document."""

    def run(case: str, *options: str) -> tuple[dict[str, Any], dict[str, Any]]:
        outcome = run_program("profiles.py", case, options=(*VIRTUAL, *options))
        assert outcome.exit_code == 0, outcome.stderr
        return outcome.printed, outcome.document["time"]

    return run


def busy_s(time: dict[str, Any]) -> float:
    """How long the device is busy in a step, by the document."""
    seconds: float = sum(kind["busy_s"][1] for kind in time["kinds"] if kind["name"] != "host")
    return seconds


@pytest.mark.slow
def test_the_profile_has_the_clocks_times(profiled: Callable[..., Any]) -> None:
    told, time = profiled("scheduled")
    assert told["device_s"] == pytest.approx(NUM_STEPS * busy_s(time), rel=0.01)
    assert told["trace_s"] == pytest.approx(told["device_s"], rel=0.01)
    assert told["perf_counter_s"] == pytest.approx(time["step_s"][1], rel=0.01)
    assert told["step_ends"] == 1


@pytest.mark.slow
def test_steps_of_the_host_last_as_long(profiled: Callable[..., Any]) -> None:
    """The profiler's own mark of each step, which begins and ends on the host."""
    told, time = profiled("scheduled")
    assert told["steps_s"] == pytest.approx([time["step_s"][1]] * NUM_STEPS, rel=0.01)


@pytest.mark.slow
def test_kernels_belong_to_operators(profiled: Callable[..., Any]) -> None:
    told, time = profiled("scheduled")
    assert told["early"] == 0
    of_operators = told["operator_s"]
    assert sum(of_operators.values()) == pytest.approx(told["device_s"], rel=0.01)
    products = next(kind for kind in time["kinds"] if kind["name"] == "matrix products")
    assert of_operators["aten::mm"] + of_operators["aten::addmm"] == pytest.approx(
        NUM_STEPS * products["busy_s"][1], rel=0.02
    )


@pytest.mark.slow
def test_the_trace_has_rows_of_the_gpu(profiled: Callable[..., Any]) -> None:
    told, _ = profiled("scheduled")
    for category in ("kernel", "cuda_runtime", "gpu_memset", "gpu_user_annotation", "cpu_op"):
        assert told["categories"].get(category), category
    marked = [name for name in told["names"] if MARK in name]
    assert marked == [f"matrix product (cuBLAS) {MARK}"]
    assert any("multi_tensor_apply_kernel" in name for name in told["names"])


@pytest.mark.slow
def test_work_that_outlasts_the_process_is_not_lost(profiled: Callable[..., Any]) -> None:
    told, _ = profiled("unwaited")
    assert told["categories"]["kernel"] == 200 and told["early"] == 0


@pytest.mark.slow
def test_the_older_profiler(profiled: Callable[..., Any]) -> None:
    """By records of kernels; and by events around each operator, in whole microseconds."""
    told, time = profiled("legacy")
    assert told["True"]["device_s"] == pytest.approx(busy_s(time), rel=0.01)
    assert sum(told["True"]["operator_s"].values()) == pytest.approx(busy_s(time), rel=0.01)
    assert sum(told["False"]["operator_s"].values()) == pytest.approx(busy_s(time), rel=0.01)


@pytest.mark.slow
def test_two_profiles_read_after_both(profiled: Callable[..., Any]) -> None:
    told, time = profiled("twice")
    for name in ("one", "other"):
        assert told[name]["device_s"] == pytest.approx(busy_s(time), rel=0.01), name
        assert told[name]["trace_s"] == pytest.approx(told[name]["device_s"], rel=0.01), name
        assert told[name]["early"] == 0


@pytest.mark.slow
def test_two_devices(profiled: Callable[..., Any]) -> None:
    told, _ = profiled("two_devices", "--gpus", "2")
    assert told["devices"] == [0, 1] and told["early"] == 0
    assert told["device_s"] == pytest.approx(told["perf_counter_s"], rel=0.01)


@pytest.mark.slow
def test_a_file_for_tensorboard(profiled: Callable[..., Any]) -> None:
    told, _ = profiled("tensorboard")
    assert told["categories"]["kernel"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--time",)])
def test_without_the_virtual_clock_nothing_runs(
    run_program: RunProgram, options: tuple[str, ...]
) -> None:
    outcome = run_program("profiles.py", "scheduled", options=options)
    assert outcome.exit_code == 0, outcome.stderr
    told = outcome.printed
    assert told["device_s"] == 0 and not told["categories"].get("kernel")
    assert told["categories"]["cpu_op"] and not told["categories"].get("cuda_runtime")
