"""The order of addresses against recordings of real GPUs; writes docs/results/truth.md.

    python -m benchmarks.accuracy.addresses

Two questions. Of consecutive large segments (64 MiB and more), is the second above or below the
first, as recorded (truth/segment_addresses.json.xz)? And where a recording has blocks too
(tests/golden/snapshots), does PyTorch's allocator come to as many segments with these addresses?
"""

from __future__ import annotations

import json
import lzma
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.accuracy.address_policy import POLICIES, Addresses
from benchmarks.accuracy.address_replay import Replayed, replay_snapshot
from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.ground.protocol.run import Platform
from ullage.ground.units import MIB
from ullage.log.addresses import platform_of, platform_of_addresses
from ullage.log.snapshot import Snapshot
from ullage.log.snapshot_reader import read_snapshot

_ROOT = Path(__file__).parents[2]
_TRUTH = Path(__file__).parent / "truth" / "segment_addresses.json.xz"
_SNAPSHOTS = _ROOT / "tests" / "golden" / "snapshots"
_LARGE_BYTES = 64 * MIB
# A generated file, and those without a trace, show nothing.
_WITHOUT_A_TRACE = {"mosaic_SYNTHETIC", "flexgen_oom", "sketchkv_state", "verl_state"}


@dataclass(frozen=True, slots=True)
class Recording:
    """Segments that come ("alloc") and go ("free"): kind, address and bytes of each event; and
    address and bytes of those that are there at the end.
    """

    name: str
    events: tuple[tuple[str, int, int], ...]
    at_end: tuple[tuple[int, int], ...]

    @property
    def at_begin(self) -> dict[int, int]:
        """Bytes of the segments that were there before the first event, by address."""
        live = dict(self.at_end)
        for kind, address, size in reversed(self.events):
            if kind == "alloc":
                live.pop(address, None)
            else:
                live[address] = size
        return live

    @property
    def platform(self) -> Platform:
        """The system that it was made on."""
        return platform_of_addresses(address for _, address, _ in self.events)


@dataclass(frozen=True, slots=True)
class Score:
    """Of a recording: the steps between consecutive large segments, how many of them go down, and
    of how many the policy has the direction. Pairs: segments of one size that are neighbours at the
    end, and how many of them the policy has in the same order.
    """

    name: str
    platform: Platform
    num_events: int
    num_steps: int
    num_down: int
    num_right: int
    num_pairs: int
    num_pairs_right: int


def read_recordings() -> list[Recording]:
    """All of the file."""
    with lzma.open(_TRUTH, "rt") as file:
        rows = json.load(file)
    return [
        Recording(
            row["name"],
            tuple((kind, address, size) for kind, address, size in row["events"]),
            tuple((address, size) for address, size in row["segments_at_end"]),
        )
        for row in rows
    ]


def score_steps(
    recording: Recording, platform: Platform | None = None, before: Recording | None = None
) -> Score:
    """Hands out addresses for a recording's segments, from those that were there before it.

    platform: whose order; None: that of the system that it was made on.
    before: the recording that this one goes on from.
    """
    earlier = before.at_begin.items() if before else ()
    policy = POLICIES[platform or recording.platform](recording.at_begin.items(), earlier)
    own, large = _hand_out(recording, policy)
    real_steps = [b - a for (a, _), (b, _) in pairwise(large)]
    own_steps = [b - a for (_, a), (_, b) in pairwise(large)]
    pairs = list(_neighbours(recording))
    return Score(
        name=recording.name,
        platform=recording.platform,
        num_events=len(recording.events),
        num_steps=len(real_steps),
        num_down=sum(step < 0 for step in real_steps),
        num_right=sum((a < 0) == (b < 0) for a, b in zip(real_steps, own_steps, strict=True)),
        num_pairs=len(pairs),
        num_pairs_right=sum(own[low] < own[high] for low, high in pairs),
    )


def find_before(recordings: Sequence[Recording]) -> dict[str, Recording]:
    """Of each recording that begins with the segments with which another ends: that one."""
    ends = {frozenset(recording.at_end): recording for recording in recordings if recording.at_end}
    begins = {recording.name: frozenset(recording.at_begin.items()) for recording in recordings}
    return {name: ends[begin] for name, begin in begins.items() if begin in ends}


def _hand_out(
    recording: Recording, policy: Addresses
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """The policy's address of each recorded one that is there at the end; and both of each large
    segment, in the order in which they came.
    """
    own = {address: address for address in recording.at_begin}
    large = []
    for kind, address, size in recording.events:
        if kind == "free":
            policy.give_back(own.pop(address), size)
            continue
        own[address] = policy.take(size)
        if size >= _LARGE_BYTES:
            large.append((address, own[address]))
    return own, large


def _neighbours(recording: Recording) -> Iterator[tuple[int, int]]:
    """Addresses of segments of one size that follow each other at the end, the lower one first."""
    by_size: dict[int, list[int]] = {}
    for address, size in sorted(recording.at_end):
        by_size.setdefault(size, []).append(address)
    for addresses in by_size.values():
        yield from pairwise(addresses)


def read_golden(name: str) -> Snapshot:
    """A recording with blocks."""
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        file.write(lzma.decompress((_SNAPSHOTS / f"{name}.pickle.xz").read_bytes()))
        file.flush()
        return read_snapshot(Path(file.name))


def replay_recordings() -> list[tuple[str, Platform, dict[Platform, Replayed]]]:
    """The recordings with blocks: the name, the system, and what each order comes to."""
    rows = []
    for path in sorted(_SNAPSHOTS.glob("*.pickle.xz")):
        name = path.name.partition(".")[0]
        if name in _WITHOUT_A_TRACE:
            continue
        snapshot = read_golden(name)
        outcomes = {platform: replay_snapshot(snapshot, 0, platform) for platform in Platform}
        rows.append((name, platform_of(snapshot, 0), outcomes))
    return rows


def _steps_table(scores: Sequence[Score], others: Sequence[Score]) -> Iterator[str]:
    yield (
        "| recording | made on | events | large steps | down | right "
        "| with the other order | pairs in order |"
    )
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for score, other in zip(scores, others, strict=True):
        yield (
            f"| {score.name} | {score.platform.value} | {score.num_events:,} | {score.num_steps} "
            f"| {score.num_down} | {score.num_right} | {other.num_right} "
            f"| {score.num_pairs_right:,} of {score.num_pairs:,} |"
        )
    sums = [
        sum(getattr(score, name) for score in scores)
        for name in ("num_events", "num_steps", "num_down", "num_right")
    ]
    others_right = sum(score.num_right for score in others)
    pairs = sum(score.num_pairs_right for score in scores), sum(s.num_pairs for s in scores)
    yield (
        f"| **all {len(scores)}** | | {sums[0]:,} | {sums[1]:,} | {sums[2]:,} "
        f"| **{sums[3]:,} ({sums[3] / sums[1]:.1%})** | {others_right:,} "
        f"| {pairs[0]:,} of {pairs[1]:,} ({pairs[0] / pairs[1]:.1%}) |"
    )


def _replays_table(rows: Sequence[tuple[str, Platform, dict[Platform, Replayed]]]) -> Iterator[str]:
    yield (
        "| recording | made on | segments | Linux's order | in place | Windows' order | in place |"
    )
    yield "|---|---|---:|---:|---:|---:|---:|"
    for name, platform, outcomes in rows:
        cells = [_outcome(outcomes[order]) for order in Platform]
        recorded = outcomes[platform].num_recorded
        yield f"| {name} | {platform.value} | {recorded} | {cells[0]} | {cells[1]} |"


def _outcome(outcome: Replayed) -> str:
    sign = "=" if outcome.has_same_segments else "differ"
    in_place = f"{outcome.num_in_place:,} of {outcome.num_blocks:,}"
    return f"{outcome.num_segments} {sign} | {in_place}"


def _page() -> str:
    recordings = read_recordings()
    before = find_before(recordings)
    scores = [score_steps(one, before=before.get(one.name)) for one in recordings]
    others = [score_steps(one, one.platform.other, before.get(one.name)) for one in recordings]
    text = (Path(__file__).parent / "addresses.md.txt").read_text(encoding="utf-8")
    return text.format(
        made_by=made_by("benchmarks.accuracy.addresses"),
        steps="\n".join(_steps_table(scores, others)),
        replays="\n".join(_replays_table(replay_recordings())),
    )


def main() -> int:
    """Writes the page."""
    publish("addresses", _page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
