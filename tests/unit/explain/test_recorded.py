"""Of a job's ranks the odd one is named, by its peak or by the time of its steps."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ullage import SnapshotError, read_recording
from ullage.explain.recorded import find_odd_ranks
from ullage.log.measured import Measured, StepsPeak
from ullage.log.model import Record
from ullage.log.reader import parse_record

GIB = 1 << 30
EMPTY = dict.fromkeys(("address", "bytes", "reserved", "scope", "device", "kind"), b"")


def record_fields(rank: int | None, peak_bytes: int) -> dict[str, Any]:
    device = {
        "index": 0, "name": "NVIDIA H100 80GB HBM3", "total_bytes": 80 * GIB,
        "context_bytes": GIB, "non_torch_bytes": 0, "outside": [],
        "peak_requested_bytes": peak_bytes, "peak_allocated_bytes": peak_bytes,
        "peak_reserved_bytes": peak_bytes, "num_allocs": 1, "num_segments": 1, "num_ooms": 0,
        "num_alloc_retries": 0,
    }  # fmt: skip
    return {
        "schema": "ullage.record/1", "ullage": "0.1.0", "torch": "2.15.0", "cuda": "13.2",
        "python": "3.11.7", "argv": ["train.py"], "pid": 100 + (rank or 0), "rank": rank,
        "started_s": 1.0, "ended_s": 9.0,
        "exit": {"kind": "returned", "exception": None, "message": None, "where": None, "code": 0},
        "devices": [device], "first_position": 0, "events": EMPTY, "marks": [], "claims": [],
        "measured": {
            "mode": "counters", "driver": "580.65", "num_lost": 0,
            "step_peaks": [
                [0, 1, peak_bytes, peak_bytes, 2.0],
                [1, 3, peak_bytes, peak_bytes, 0.3],
            ],
        },
    }  # fmt: skip


def record(rank: int | None, peak_bytes: int, step_s: float = 0.1) -> Record:
    parsed = parse_record(record_fields(rank, peak_bytes))
    assert parsed.measured is not None
    rows = (StepsPeak(0, 1, 0, 0, 9.0), StepsPeak(1, 2, 0, 0, 2 * step_s))
    return replace(parsed, measured=Measured("counters", None, 0, rows))


@pytest.mark.parametrize(
    ("peaks", "odd"),
    [
        ([10, 10, 12, 10], 2),
        ([10, 10, 10, 8], 3),
        ([10, 10, 10, 10], None),
        ([10, 11, 12, 13], None),
    ],
)
def test_the_rank_that_is_furthest_from_the_others_is_odd(
    peaks: list[int], odd: int | None
) -> None:
    sentences = find_odd_ranks([record(rank, peak * GIB) for rank, peak in enumerate(peaks)])
    assert [text.partition(" is odd: its peak")[0] for text in sentences] == (
        [] if odd is None else [f"rank {odd}"]
    )


def test_of_two_ranks_the_larger_is_named_and_none_is_odd() -> None:
    assert find_odd_ranks([record(0, 10 * GIB), record(1, 20 * GIB)]) == [
        "rank 1 needs more than rank 0: its peak is 20.0 GiB allocated, 10.0 GiB on rank 0"
    ]
    assert find_odd_ranks([record(0, 100 * GIB), record(1, 101 * GIB)]) == []


def test_a_small_difference_is_not_odd() -> None:
    assert find_odd_ranks([record(rank, 10 * GIB + (rank == 1)) for rank in range(4)]) == []


def test_a_straggler_is_named_by_the_time_of_its_steps() -> None:
    records = [record(rank, GIB, 0.15 if rank == 2 else 0.1) for rank in range(4)]
    (sentence,) = find_odd_ranks(records)
    assert sentence == "rank 2 is odd: a step takes 0.15 s, 0.1 s on the other ranks"


def test_a_directory_of_ranks_is_one_report(tmp_path: Path) -> None:
    for rank in range(3):
        fields = record_fields(rank, (2 if rank == 1 else 1) * GIB)
        snapshot = {"segments": [], "device_traces": [], "ullage": fields}
        (tmp_path / f"train-rank{rank}.pickle").write_bytes(pickle.dumps(snapshot))
    recorded = read_recording(tmp_path)
    assert [process.record.rank for process in recorded.report.processes] == [0, 1, 2]
    assert recorded.document["basis"]["allocator"]["kind"] == "measured"
    assert recorded.document["basis"]["device"]["kind"] == "measured"
    assert recorded.peak_allocated_bytes == 2 * GIB
    assert "rank 1 is odd" in recorded.text()
    assert recorded.text().startswith("measured on NVIDIA H100 80GB HBM3: peak 2.0 GiB")
    assert "driver 580.65" in recorded.text()


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="has no files"):
        read_recording(tmp_path)
    snapshot = {"segments": [], "device_traces": []}
    (tmp_path / "other.pickle").write_bytes(pickle.dumps(snapshot))
    with pytest.raises(SnapshotError, match=r"other\.pickle.*was not recorded on a GPU"):
        read_recording(tmp_path)
