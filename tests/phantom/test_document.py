"""The run document has every field of its schema, and its figures agree with one another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

# Each on a GPU on which another test runs it too.
GPUS = {
    "peaks.py": "h100-80gb",
    "out_of_memory.py": "h100-80gb",
    "out_of_memory_backward.py": "h100-80gb",
    "out_of_memory_moving.py": "a100-40gb",
}
OUT_OF_MEMORY = tuple(GPUS)[1:]

# {field: its type, types, or the fields of what it holds}; a list says what each of its items is.
OWNERS = dict.fromkeys(
    ("parameter", "gradient", "optimizer_state", "activation", "input", "temporary",
     "workspace", "communication", "kv_cache", "buffer", "unattributed"), int,
)  # fmt: skip
PEAK = {"peak_allocated_bytes": int, "peak_reserved_bytes": int}
STEP = {"index": int, **PEAK, "phases": {"forward": PEAK, "backward": PEAK, "optimizer": PEAK}}
SIZES = dict.fromkeys(
    ("index", "total_bytes", "context_bytes", "context_low_bytes", "context_high_bytes",
     "non_torch_bytes", "peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes",
     "peak_used_bytes", "headroom_bytes", "num_allocs", "num_segments", "num_ooms",
     "num_alloc_retries"), int,
)  # fmt: skip
BASIS = {"kind": str, "assumptions": [{"what": str, "where": str, "count": int, "bytes": int}]}
OOM = {"requested_bytes": int, "message": str, "where": str, "findings": [dict]}
DOCUMENT = {
    "schema": str, "verdict": str, "program": [str], "exit_code": int, "torch": str,
    "ullage": str, "wall_s": float, "warnings": [str],
    "basis": {"allocator": BASIS, "device": BASIS},
    "host_peak_bytes": int, "pinned_peak_bytes": int,
    "processes": [{"pid": int, "rank": None, "snapshot": str, "oom": None}],
    "devices": [{**SIZES, "rank": None, "gpu": str, "at_peak": OWNERS,
                 "modules": [{"path": (str, type(None)), "bytes": int}], "steps": [STEP]}],
    "oom": None, "snapshot": str,
}  # fmt: skip


def check_shape(found: Any, expected: Any, path: str = "document") -> None:
    """Every expected field is there, with the type that it should have."""
    if expected is None:
        assert found is None, path
    elif isinstance(expected, tuple):
        assert type(found) in expected, f"{path} is {found!r}"
    elif isinstance(expected, type):
        assert type(found) is expected, f"{path} is {found!r}"
    elif isinstance(expected, list):
        assert isinstance(found, list), path
        for index, item in enumerate(found):
            check_shape(item, expected[0], f"{path}[{index}]")
    else:
        for name, inner in expected.items():
            assert name in found, f"{path}.{name} is missing"
            check_shape(found[name], inner, f"{path}.{name}")


def test_the_document_of_a_program_that_fits_has_every_field(run_program: RunProgram) -> None:
    document = json.loads(run_program("peaks.py").stdout)
    check_shape(document, DOCUMENT)
    assert (document["schema"], document["verdict"]) == ("ullage.run/1", "fits")
    assert len(document["devices"][0]["steps"]) == 4
    assert document["snapshot"] == document["processes"][0]["snapshot"]
    assert Path(document["snapshot"]).is_file()


@pytest.mark.parametrize("name", OUT_OF_MEMORY)
def test_the_document_of_one_that_does_not_has_them_too(run_program: RunProgram, name: str) -> None:
    document = run_program(name, gpu=GPUS[name]).document
    process = {**DOCUMENT["processes"][0], "oom": OOM}
    # Phases that were not reached are not there.
    devices = [{**DOCUMENT["devices"][0], "steps": [{"index": int, **PEAK}]}]
    check_shape(document, {**DOCUMENT, "oom": OOM, "processes": [process], "devices": devices})


def test_a_step_that_ran_out_within_backward_has_not_ended(run_program: RunProgram) -> None:
    (step,) = run_program("out_of_memory_backward.py").device["steps"]
    assert not step["is_complete"]
    assert set(step["phases"]) == {"forward", "backward"}
    assert step["phases"]["backward"]["peak_allocated_bytes"] == step["peak_allocated_bytes"]


def test_a_field_that_is_missing_or_of_another_kind_is_seen() -> None:
    with pytest.raises(AssertionError, match=r"basis\.device is missing"):
        check_shape({"basis": {"allocator": {"kind": "exact", "assumptions": []}}},
                    {"basis": DOCUMENT["basis"]})  # fmt: skip
    with pytest.raises(AssertionError, match="exit_code"):
        check_shape({"exit_code": "0"}, {"exit_code": int})


@pytest.mark.parametrize("name", GPUS)
def test_the_devices_bytes_add_up(run_program: RunProgram, name: str) -> None:
    device = run_program(name, gpu=GPUS[name]).device
    used = device["peak_reserved_bytes"] + device["context_high_bytes"] + device["non_torch_bytes"]
    assert device["peak_used_bytes"] == used
    assert device["headroom_bytes"] == device["total_bytes"] - used
    requested, allocated = device["peak_requested_bytes"], device["peak_allocated_bytes"]
    assert 0 < requested <= allocated <= device["peak_reserved_bytes"] < device["total_bytes"]
    assert sum(device["at_peak"].values()) == allocated


@pytest.mark.parametrize("name", OUT_OF_MEMORY)
def test_a_program_that_ran_out_names_no_gpu_that_would_do(
    run_program: RunProgram, name: str
) -> None:
    # Its peak is not known: the allocation that failed was not the last.
    assert run_program(name, gpu=GPUS[name]).document["fits_on"] == []
