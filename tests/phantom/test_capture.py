"""Captures into CUDA graphs: what CUDA forbids fails with CUDA's error, and what it allows does
not. Needs no Triton.

Source of what is forbidden: CUDA Programming Guide, stream capture; the texts of the runtime's
cudaStreamBeginCapture, cudaStreamEndCapture and cudaThreadExchangeStreamCaptureMode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

UNSUPPORTED = "operation not permitted when stream is capturing"  # 900
INVALIDATED = "operation failed due to a previous error during capture"  # 901
UNJOINED = "capturing stream has unjoined work"  # 904
ISOLATION = "dependency created on uncaptured work in another stream"  # 905
IMPLICIT = "operation would make the legacy stream depend on a capturing blocking stream"  # 906
CAPTURED_EVENT = "operation not permitted on an event last recorded in a capturing stream"  # 907
WRONG_THREAD = "attempt to terminate a thread-local capture sequence from another thread"  # 908
OF_PYTORCH = "during CUDA graph capture"

ALLOWED = [
    "nothing",
    "other_stream_work",
    "event_query_relaxed",
    "event_query_in_thread_local",
    "allocation",
    "runtime_allocation_relaxed",
    "forked_and_joined",
    "forked_without_work",
    "joined_by_another",
    "after_all",
]
REFUSED = {
    "item": UNSUPPORTED,
    "nonzero": UNSUPPORTED,
    "synchronize": UNSUPPORTED,
    "synchronize_relaxed": UNSUPPORTED,
    "stream": UNSUPPORTED,
    "captured_event_query": CAPTURED_EVENT,
    "captured_event_wait": CAPTURED_EVENT,
    "event_of_before": ISOLATION,
    "event_query": UNSUPPORTED,
    "event_query_in_thread": UNSUPPORTED,
    "runtime_allocation": "status 900",
    "default_stream_waits": IMPLICIT,
}


def test_what_cuda_allows_in_a_capture_is_done(run_program: RunProgram) -> None:
    found = run_program("captures.py").printed
    assert {way: found[way] for way in ALLOWED} == {
        way: {"call": "done", "capture": "done"} for way in ALLOWED
    }


@pytest.mark.parametrize("way", REFUSED)
def test_what_cuda_forbids_fails_and_makes_the_capture_void(
    run_program: RunProgram, way: str
) -> None:
    ends = run_program("captures.py").printed[way]
    assert ends["call"].endswith(REFUSED[way])
    assert ends["capture"].endswith(INVALIDATED)


@pytest.mark.parametrize("way", ["forked_only", "joined_too_early"])
def test_a_fork_that_is_not_joined_is_found_at_the_end(run_program: RunProgram, way: str) -> None:
    ends = run_program("captures.py").printed[way]
    assert ends["call"] == "done"
    assert ends["capture"].endswith(UNJOINED)


def test_a_capture_ends_in_the_thread_in_which_it_began(run_program: RunProgram) -> None:
    found = run_program("captures.py").printed
    assert found["ended_elsewhere"].endswith(WRONG_THREAD)
    assert found["ended_elsewhere_relaxed"] == "done"


def test_what_pytorch_itself_refuses_reads_as_it_does(run_program: RunProgram) -> None:
    found = run_program("captures.py").printed
    assert "non-default stream" in found["on_default_stream"]
    assert OF_PYTORCH in found["cpu"]["call"] or found["cpu"]["call"].endswith(UNSUPPORTED)


def test_an_error_in_a_capture_that_nobody_catches_ends_the_program(
    run_program: RunProgram,
) -> None:
    outcome = run_program("capture_fails.py")
    assert outcome.exit_code == 3
    assert outcome.document["verdict"] == "failed"
    assert INVALIDATED in outcome.document["exception"]["message"]
    assert UNSUPPORTED in outcome.stderr


def test_graphs_take_memory_by_their_nodes_and_leave_it_to_others(run_program: RunProgram) -> None:
    outcome = run_program("graph_nodes.py")
    found, device = outcome.printed, outcome.device
    # Whole pages of both graphs. An add is one kernel. Source: csrc/machine/graph.c.
    high_bytes = 2 * (112 << 10) + 1040 * 8704
    assert found["taken"] == [2 << 20, -(-high_bytes >> 21 << 21) - (2 << 20)]
    assert found["left"] == found["again"] == sum(found["taken"])
    assert device["non_torch_bytes"] == sum(found["taken"])
    (made,) = [
        made
        for made in outcome.document["basis"]["device"]["assumptions"]
        if made["what"].startswith("CUDA graphs")
    ]
    low_bytes = 2 * (112 << 10) + (39 + 999) * 2304
    assert made["low_bytes"] == -(-low_bytes >> 21 << 21)
    assert made["high_bytes"] == device["non_torch_bytes"]


def test_the_runtime_tells_what_the_work_of_a_capture_waits_for(run_program: RunProgram) -> None:
    found = run_program("captured_reuse.py").printed
    assert found["waits"] == {
        "at the start": [],
        "after a kernel": [0],
        "after the join": [0, 1],
        "after a kernel more": [2],
        "that waited for": [0, 1],
        "the other stream's for": [0],
        "when it was set": [0],
    }
    assert found["num_nodes"] == 3


REUSE = "graph_capture_record_stream_reuse:True"


@pytest.mark.parametrize(("settings", "expected"), [([], False), ([REUSE], True)])
def test_a_block_of_another_stream_is_reused_after_the_join_if_it_is_set(
    run_program: RunProgram, torch_version: str, settings: list[str], *, expected: bool
) -> None:
    if settings and torch_version.startswith(("2.6.", "2.7.", "2.8.")):
        pytest.skip(f"torch {torch_version} has no {REUSE}")
    found = run_program("captured_reuse.py", *settings).printed
    assert found["is_reused"] == [False, expected]
    # The first, one in its place while the other stream may use it, and one after the join.
    assert found["blocks"] == 3 - expected


def test_the_body_of_a_conditional_node_is_captured(
    run_program: RunProgram, torch_version: str
) -> None:
    if not torch_version.startswith("2.15."):
        pytest.skip(f"torch {torch_version} has no conditional nodes, or others")
    assert run_program("conditional_graph.py").printed == {"shape": [4]}
