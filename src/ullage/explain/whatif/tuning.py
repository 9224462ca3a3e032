"""The bytes of a run whose compiler's cache had known the best settings of its kernels.

Where its cache is cold, Inductor times its kernels before it first launches them, and allocates
copies of their arguments and a buffer that flushes the L2 cache. The segments that these take stay,
and later blocks use them, so that the peak of what is reserved differs from that of a run with a
warm cache. This is the warm end: the requests of the trace again, without those of the timing.

    measure_warm(read_snapshot(path), where)       `OtherPeaks` of each device
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ullage.explain.whatif.completion import let_go
from ullage.explain.whatif.replays import Where
from ullage.explain.whatif.variants import replay_variants
from ullage.log.blocks import BoolArray
from ullage.log.bounds import OtherPeaks, Otherwise, Peaks
from ullage.log.replay import Replay, replay
from ullage.log.requests import Requests, find_requests
from ullage.log.snapshot import Snapshot, Stacks

# What Inductor remembers is in these; Triton's own tuner times its kernels in every process.
TIMERS: Mapping[str, frozenset[str]] = {
    "torch/_inductor/runtime/triton_heuristics.py": frozenset(
        {"autotune_to_one_config", "coordinate_descent_tuning"}
    ),
    "torch/_inductor/select_algorithm.py": frozenset({"do_autotuning", "benchmark_choices"}),
    "torch/_inductor/fx_passes/pad_mm.py": frozenset({"should_pad_bench"}),
    # It times nothing, but a graph that is known is not made again: patterns, folded constants.
    "torch/_inductor/fx_passes/joint_graph.py": frozenset({"joint_graph_passes"}),
}


@dataclass(frozen=True, slots=True)
class _Timed:
    """A device on which kernels were timed: its trace, and which of its blocks the timing took."""

    device: int
    recorded: Replay
    is_timing: BoolArray


def measure_warm(snapshot: Snapshot, where: Where) -> tuple[OtherPeaks, ...]:
    """The warm end of each device on which kernels were timed; without a figure where a replay of
    what was recorded does not come to it.

    Raises: EnvironmentProblem: the replay could not be made.
    """
    replays = {
        device: replay(snapshot, device)
        for device, events in enumerate(snapshot.events)
        if len(events)
    }
    traces = (
        _Timed(device, recorded, find_timing(snapshot.stacks, recorded))
        for device, recorded in replays.items()
    )
    return tuple(_measure(snapshot, trace, where) for trace in traces if trace.is_timing.any())


def find_timing(stacks: Stacks, recorded: Replay) -> BoolArray:
    """Which blocks the timing of kernels allocated and gave back.

    What stays, such as the workspace of cuBLAS, is only allocated later where nothing is timed.
    """
    frames, blocks = stacks.frames, recorded.blocks
    is_timer = np.array(
        [_is_timer(file, name) for file, name in zip(frames.file, frames.function, strict=True)],
        dtype=bool,
    )
    before = np.append(0, np.cumsum(is_timer[stacks.frame]))
    has_timer = before[stacks.start[1:]] > before[stacks.start[:-1]]
    is_whole = (blocks.birth >= 0) & (blocks.death < recorded.num_events)
    is_timing: BoolArray = has_timer[blocks.stack] & is_whole
    return is_timing


def _is_timer(file: str, function: str) -> bool:
    place = file.replace("\\", "/")
    return any(place.endswith(end) and function in names for end, names in TIMERS.items())


def _measure(snapshot: Snapshot, trace: _Timed, where: Where) -> OtherPeaks:
    return OtherPeaks(
        Otherwise.TUNING,
        trace.device,
        tuple(_replay_all(snapshot, trace, where)),
        num_blocks=int(trace.is_timing.sum()),
        block_bytes=int(trace.recorded.blocks.size_bytes[trace.is_timing].max()),
    )


def _replay_all(snapshot: Snapshot, trace: _Timed, where: Where) -> list[Peaks]:
    """The replays without the timing, with asynchronous work done late and at once; empty where a
    replay of the recorded requests does not come to what was recorded.
    """
    recorded, device = trace.recorded, trace.device
    death = let_go(recorded.blocks, snapshot.events_of(device))
    ends = [recorded]
    if not np.array_equal(death, recorded.blocks.death):
        ends.append(replace(recorded, blocks=replace(recorded.blocks, death=death)))
    requests = [find_requests(snapshot, end, device) for end in ends]
    variants = [_without(each, trace.is_timing) for each in requests]
    return replay_variants(snapshot, device, recorded, [requests[0], *variants], where)


def _without(requests: Requests, is_left_out: BoolArray) -> Requests:
    ops, count = requests.ops, len(requests.sizes)
    numbers = np.concatenate([is_left_out, np.zeros(count - len(is_left_out), dtype=bool)])
    is_kept = (ops < 0) | ~numbers[np.maximum(ops, 0) % count]
    return replace(requests, ops=ops[is_kept], event=requests.event[is_kept])
