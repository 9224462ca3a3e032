"""Several devices in one process: each has its own memory, owners and steps, and the report says
which is the tightest. Sizes are worked out by hand from the programs' shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ullage.verbs.explain.function import explain_file

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

MIB = 1 << 20
TWO, THREE = ("--gpus", "2"), ("--gpus", "3")

# devices/data_parallel.py: two matrices of 1024 x 4096, in fp32, and 64 rows of 1024 a device.
COPIES = 2 * 1024 * 4096 * 4
ROWS = 64 * 1024 * 4


@pytest.fixture
def parallel(run_program: RunProgram) -> Any:
    return run_program("devices/data_parallel.py", options=THREE)


@pytest.fixture
def stages(run_program: RunProgram) -> Any:
    return run_program("devices/stages.py", options=THREE)


def test_the_result_of_data_parallel_is_gathered_on_the_first_device(parallel: Any) -> None:
    assert parallel.printed["gathered"] == [3 * ROWS, 0, 0]


def test_replicas_have_copies_of_the_parameters_on_the_other_devices(parallel: Any) -> None:
    peaks, before = parallel.printed["peaks"], parallel.printed["before"]
    assert before[1:] == [0, 0]
    # Beside the copies: the rows, the layer between (4096 wide) twice around the activation, and
    # what cuBLAS was lent.
    least, most = COPIES + ROWS + 4 * ROWS, COPIES + ROWS + 3 * 4 * ROWS + 32 * MIB + MIB
    assert all(least <= peak <= most for peak in peaks[1:])
    assert peaks[1] == peaks[2]


def test_copies_of_parameters_are_parameters_with_their_modules(parallel: Any) -> None:
    first, *others = parallel.document["devices"]
    assert [device["index"] for device in others] == [1, 2]
    assert first["at_peak"]["parameter"] == COPIES
    for device in others:
        # In backward the first layer's copy is gone: nothing needs it.
        assert COPIES // 2 <= device["at_peak"]["parameter"] <= COPIES
        assert device["at_peak"]["unattributed"] == 0
        assert sum(device["at_peak"].values()) == device["peak_allocated_bytes"]
        assert {module["path"] for module in device["modules"]} <= {"", "0", "1", "2"}


def test_a_forward_of_replicas_is_one_forward(parallel: Any) -> None:
    for device in parallel.document["devices"]:
        phases = [set(step["phases"]) for step in device["steps"]]
        assert phases == 3 * [{"forward", "backward", "optimizer"}]
        assert [one["num_forwards"] for one in device["evaluations"]] == [2]


def test_small_values_are_broadcast(parallel: Any) -> None:
    assert parallel.printed["broadcast"] == 3 * [[0, 1, 2, 3]]


def test_communicators_are_in_the_basis_of_the_device(parallel: Any) -> None:
    made = {m["what"]: m for m in parallel.document["basis"]["device"]["assumptions"]}
    buffers = made["NCCL's buffers for collectives"]
    # 32 channels to two ranks, 10 MiB to receive and 2 MiB to send: csrc/answers/nccl_memory.c.
    assert (buffers["low_bytes"], buffers["high_bytes"]) == (0, 32 * 2 * 12 * MIB)
    others = ("NCCL's kernels", "NCCL's buffers for reductions in the NVLink switch")
    beside = sum(made[what]["high_bytes"] for what in others)
    for device in parallel.document["devices"]:
        assert device["non_torch_bytes"] == buffers["high_bytes"] + beside
        assert device["headroom_high_bytes"] - device["headroom_bytes"] >= buffers["high_bytes"]


def test_each_stage_of_a_pipeline_has_its_own_on_its_device(stages: Any) -> None:
    devices = stages.document["devices"]
    assert [device["index"] for device in devices] == [0, 1, 2]
    for i, device in enumerate(devices):
        layers = (i + 1) * 2048 * 2048 * 4
        owners = device["at_peak"]
        assert owners["parameter"] == owners["gradient"] == layers
        assert owners["optimizer_state"] == 2 * layers
        assert len(device["steps"]) == 3
        assert sum(owners.values()) == device["peak_allocated_bytes"]


def test_every_device_is_explained_and_the_last_is_the_tightest(stages: Any) -> None:
    devices = stages.document["devices"]
    assert min(devices, key=lambda device: device["headroom_bytes"])["index"] == 2
    explained = explain_file(stages.directory / "snapshot.pickle")
    assert [device["index"] for device in explained.document["devices"]] == [0, 1, 2]
    assert "Most allocated of device 2" in explained.text(full=True)


def test_what_runs_out_is_one_device(run_program: RunProgram) -> None:
    outcome = run_program("devices/one_full.py", gpu="t4", options=TWO)
    assert outcome.exit_code == 1
    document = outcome.document
    assert "on device 1 at one_full.py:7" in document["reason"]
    assert "GPU 1 has a total capacity" in document["oom"]["message"]
    first, second = document["devices"]
    assert (first["num_ooms"], second["num_ooms"]) == (0, 1)
    assert first["peak_reserved_bytes"] == 1 << 30
    # 14 whole GiB fit beside the context.
    assert second["peak_reserved_bytes"] == 14 << 30
    assert first["headroom_bytes"] - second["headroom_bytes"] == 13 << 30


@pytest.mark.parametrize(("gpu", "temporary_bytes"), [("h100-80gb", 0), ("rtx-4090", 4 * MIB)])
def test_a_copy_between_devices_goes_by_way_of_a_temporary_where_there_is_no_peer_access(
    run_program: RunProgram, gpu: str, temporary_bytes: int
) -> None:
    found = run_program("devices/asks.py", gpu=gpu, options=TWO).printed
    assert found["peers"] == 2 * [not temporary_bytes]
    assert found["copied"] == [0, temporary_bytes]
    assert found["moved"] == list(range(1, 9))


def test_expandable_segments_are_seen_by_peers(run_program: RunProgram) -> None:
    options = (*TWO, "--alloc-conf", "expandable_segments:True")
    found = run_program("devices/asks.py", options=options).printed
    assert found["copied"] == [0, 0]
    assert found["taken"] == 80 * MIB  # such segments grow by 20 MiB


def test_each_device_counts_for_itself(run_program: RunProgram) -> None:
    found = run_program("devices/asks.py", options=TWO).printed
    assert (found["current"], found["taken"], found["stream"]) == (0, 64 * MIB, 1)
    assert found["uuids"] == 2
    assert "invalid resource handle" in found["between"]


@pytest.mark.parametrize(("visible", "count"), [("1", 1), ("1,0", 2), ("0,1,2", 2), ("", 0)])
def test_devices_can_be_hidden(run_program: RunProgram, visible: str, count: int) -> None:
    env = (("CUDA_VISIBLE_DEVICES", visible),)
    assert run_program("devices/asks.py", options=TWO, env=env).printed["count"] == count


@pytest.mark.slow
@pytest.mark.parametrize("device_map", ["auto", "balanced"])
def test_accelerate_spreads_a_model_over_the_devices(
    run_program: RunProgram, device_map: str
) -> None:
    options = ("--gpus", "4", "--dummy-weights")
    outcome = run_program("devices/device_map.py", device_map, options=options)
    assert outcome.exit_code == 0, outcome.stderr
    found, devices = outcome.printed, outcome.document["devices"]
    # Embedding and head, and 8 layers of four projections, three matrices and two norms, in bf16.
    layer = 2 * 1024 * 1024 + 2 * 512 * 1024 + 3 * 1024 * 2048 + 2 * 1024
    assert sum(found["owned"]) == 2 * (2 * 8192 * 1024 + 8 * layer + 1024)
    assert all(found["parts"])
    assert found["shape"] == [2, 64 + 4]
    for owned, device in zip(found["owned"], devices, strict=True):
        assert owned <= device["at_peak"]["parameter"] <= owned + 32 * 512
        assert device["at_peak"]["unattributed"] == 0
        assert device["steps"]
