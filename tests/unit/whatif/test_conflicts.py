"""What a program does rules settings out."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from ullage.explain.whatif.conflicts import find_conflicts
from ullage.explain.whatif.settings import Family
from ullage.log.snapshot import Snapshot
from ullage.log.snapshot_reader import read_snapshot


def test_a_plain_program_has_none(make_snapshot: Callable[..., Snapshot]) -> None:
    assert not find_conflicts(make_snapshot("+a +b -a", has_stacks=True))


def test_private_pools_rule_out_expandable_segments(
    make_snapshot: Callable[..., Snapshot],
) -> None:
    found = find_conflicts(make_snapshot("+a +b:1"))
    (reason,) = found[Family.EXPANDABLE]
    assert "private pools" in reason


@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("vllm/distributed/device_communicators/custom_all_reduce.py", "capture"),
        ("torch/multiprocessing/reductions.py", "reduce_tensor"),
        ("vllm/device_allocator/cumem.py", "use_memory_pool"),
    ],
)
def test_memory_that_is_shared_rules_them_out(tmp_path: Path, file: str, function: str) -> None:
    frames = [{"filename": file, "line": 3, "name": function}]
    event = {"action": "alloc", "addr": 1 << 32, "size": 512, "stream": 0, "frames": frames}
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[event]]}))
    assert len(find_conflicts(read_snapshot(path))[Family.EXPANDABLE]) == 1
