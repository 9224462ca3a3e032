"""Which blocks the timing of kernels took, and what is replayed without them; the replays
themselves are in tests/phantom/test_tuning.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage.explain.whatif.other_ends import find_timing, measure_warm
from ullage.explain.whatif.replays import Where
from ullage.ground.units import MIB
from ullage.log.bounds import OtherPeaks, Otherwise, Peaks
from ullage.log.replay import replay
from ullage.log.snapshot import Snapshot
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.torch_build import TorchBuild

BUILD = TorchBuild("2.15.0", "13.2", Path(), {}, frozenset(), frozenset())
NOWHERE = Where("no such python", BUILD, choose_device(None))
HEURISTICS = "/env/lib/torch/_inductor/runtime/triton_heuristics.py"
CLONE = [
    {"filename": HEURISTICS, "line": 990, "name": "maybe_clone_args"},
    {"filename": HEURISTICS, "line": 1009, "name": "benchmark_all_configs"},
    {"filename": HEURISTICS, "line": 1047, "name": "autotune_to_one_config"},
    {"filename": "/project/train.py", "line": 7, "name": "forward"},
]
Make = Callable[..., Snapshot]


def timing_of(snapshot: Snapshot) -> list[bool]:
    is_timing: list[bool] = find_timing(snapshot.stacks, replay(snapshot, 0)).tolist()
    return is_timing


@pytest.mark.parametrize(
    ("file", "function", "is_timer"),
    [
        (HEURISTICS, "autotune_to_one_config", True),
        (HEURISTICS, "coordinate_descent_tuning", True),
        (HEURISTICS.replace("/", "\\"), "autotune_to_one_config", True),
        ("/env/torch/_inductor/select_algorithm.py", "benchmark_choices", True),
        ("/env/torch/_inductor/fx_passes/pad_mm.py", "should_pad_bench", True),
        (HEURISTICS, "run", False),  # the launch itself
        ("/project/train.py", "autotune_to_one_config", False),
        # Triton's own tuner remembers nothing: it times its kernels in every process.
        ("/env/triton/runtime/autotuner.py", "_bench", False),
    ],
)
def test_what_inductor_allocates_to_time_kernels_is_known_by_its_stack(
    make_snapshot: Make, file: str, function: str, *, is_timer: bool
) -> None:
    frames = [{"filename": file, "line": 1, "name": function}]
    assert timing_of(make_snapshot("+a +b -b", frames={"b": frames})) == [False, is_timer]


def test_what_stays_is_not_left_out(make_snapshot: Make) -> None:
    """The workspace of cuBLAS, say: without the timing it comes with the first product."""
    assert timing_of(make_snapshot("+a +b", frames={"b": CLONE})) == [False, False]


def test_where_no_kernel_was_timed_nothing_is_replayed(make_snapshot: Make) -> None:
    assert measure_warm(make_snapshot("+a -a +b"), NOWHERE) == ()


def test_the_requests_are_replayed_without_those_of_the_timing(
    make_snapshot: Make, sent: dict[str, Any]
) -> None:
    sent["peaks"] = (6, 4, 4)
    (warm,) = measure_warm(make_snapshot("+a +b -b +c", frames={"b": CLONE}), NOWHERE)
    peaks = (Peaks(4 * MIB, 3 * MIB),) * 2  # late and at once
    assert warm == OtherPeaks(Otherwise.TUNING, 0, peaks, 1, MIB)
    recorded, warm_requests, _ = sent["requests"]
    assert recorded.ops.tolist() == [0, 1, 4, 2]  # block 1 comes and goes
    assert warm_requests.ops.tolist() == [0, 2] and len(warm_requests.event) == 2


def test_both_ends_of_asynchronous_work_count(make_snapshot: Make, sent: dict[str, Any]) -> None:
    sent["peaks"] = (6, 6, 4)
    (warm,) = measure_warm(make_snapshot("+a ?a +b -b +c -a", frames={"b": CLONE}), NOWHERE)
    assert sorted(peaks.reserved_bytes for peaks in warm.peaks) == [4 * MIB, 6 * MIB]
    _, _, once = sent["requests"]
    assert once.ops.tolist() == [0, 3, 2], "a is given back where the program let go of it"


@pytest.mark.parametrize("reserved", [(7, 4, 4), (6, 4, None)])
def test_a_replay_that_does_not_reproduce_the_recording_gives_no_figure(
    make_snapshot: Make, sent: dict[str, Any], reserved: tuple[int | None, ...]
) -> None:
    sent["peaks"] = reserved
    (warm,) = measure_warm(make_snapshot("+a +b -b +c", frames={"b": CLONE}), NOWHERE)
    assert warm.peaks == ()
