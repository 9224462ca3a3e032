"""The run document has every field that DESIGN promises, in plain JSON, and sums that hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ullage.explain.program import Program
from ullage.explain.run import explain_run
from ullage.facts.gpus.catalog import Gpu
from ullage.ground.protocol.plain import plain
from ullage.log.model import Record

Make = Callable[..., Record]

FIELDS = """
    schema verdict program exit_code torch ullage wall_s warnings basis host_peak_bytes
    host_needed_bytes pinned_peak_bytes processes devices oom snapshot
"""
DEVICE_FIELDS = """
    index rank gpu total_bytes context_bytes context_low_bytes context_high_bytes non_torch_bytes
    peak_requested_bytes peak_allocated_bytes peak_reserved_bytes peak_used_bytes headroom_bytes
    num_allocs num_segments num_ooms num_alloc_retries at_peak modules steps
"""
CATEGORIES = """
    parameter gradient optimizer_state activation input temporary workspace communication
    kv_cache buffer unattributed
"""


def document(record: Record, program: Program, gpu: Gpu) -> dict[str, Any]:
    report = explain_run(
        [(record, "a.pickle")], program=program, torch="2.15.0", gpu=gpu, is_unlimited=False
    )
    value: dict[str, Any] = json.loads(json.dumps(plain(report)))
    return value


def test_every_promised_field_is_there(make_record: Make, program: Program, small_gpu: Gpu) -> None:
    found = document(make_record("+4 F +3 f B -3 b O o S"), program, small_gpu)
    assert found["schema"] == "ullage.run/1"
    assert set(found) >= set(FIELDS.split())
    device = found["devices"][0]
    assert set(device) >= set(DEVICE_FIELDS.split())
    assert set(device["at_peak"]) == set(CATEGORIES.split())
    assert set(device["steps"][0]["phases"]) == {"forward", "backward", "optimizer"}
    (context,) = found["basis"]["device"]["assumptions"]
    assert set(context) == {"what", "where", "count", "bytes", "low_bytes", "high_bytes"}
    assert (context["low_bytes"], context["high_bytes"], context["bytes"]) == (80, 120, 40)


def test_the_sums_hold(make_record: Make, program: Program, small_gpu: Gpu) -> None:
    device = document(make_record("+40 =parameter +9 -9 +3"), program, small_gpu)["devices"][0]
    assert sum(device["at_peak"].values()) == device["peak_allocated_bytes"] == 49
    used = device["peak_reserved_bytes"] + device["context_high_bytes"] + device["non_torch_bytes"]
    assert device["peak_used_bytes"] == used
    assert device["headroom_bytes"] == device["total_bytes"] - used


def test_the_out_of_memory_that_ended_the_program_is_the_documents_own(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    ended = {"kind": "exception", "exception": "torch.OutOfMemoryError", "code": 1,
             "message": "CUDA out of memory.", "where": "train.py:3 in main"}  # fmt: skip
    found = document(make_record("+4 !900", exit=ended), program, small_gpu)
    assert found["oom"] == found["processes"][0]["oom"]
    assert found["oom"]["requested_bytes"] == 900
    assert found["exception"]["type"] == "torch.OutOfMemoryError"
    survived = document(make_record("+4 !900"), program, small_gpu)
    assert survived["oom"] is None
    assert survived["devices"][0]["num_ooms"] == 1


def test_a_program_without_a_gpu_has_a_document_too(program: Program, small_gpu: Gpu) -> None:
    report = explain_run([], program=program, torch="2", gpu=small_gpu, is_unlimited=True)
    found = plain(report)
    assert (found["devices"], found["snapshot"], found["oom"]) == ([], None, None)
