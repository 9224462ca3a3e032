"""Memory snapshots of every version: read into columns that say what the file says."""

from __future__ import annotations

import lzma
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ullage.ground.errors import SnapshotError
from ullage.log.snapshot import Action, BlockState, Snapshot
from ullage.log.snapshot_reader import read_snapshot

GOLDEN = Path(__file__).parents[2] / "golden" / "snapshots"
NAMES = sorted(path.name.partition(".")[0] for path in GOLDEN.glob("*.pickle.xz"))
STATES = {
    "inactive": BlockState.INACTIVE,
    "active_allocated": BlockState.ACTIVE,
    "active_pending_free": BlockState.PENDING,
    "active_awaiting_free": BlockState.PENDING,
}
Write = Callable[[Any], Path]


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"the snapshot names {module}.{name}")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A file with a value, pickled."""

    def make(value: Any) -> Path:
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(value))
        return path

    return make


@pytest.fixture(scope="module", params=NAMES)
def golden(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Snapshot]:
    """A recording as pickle reads it, and as ullage does."""
    path = tmp_path_factory.mktemp("golden") / "snapshot.pickle"
    path.write_bytes(lzma.decompress((GOLDEN / f"{request.param}.pickle.xz").read_bytes()))
    with path.open("rb") as file:
        return _PlainUnpickler(file).load(), read_snapshot(path)


def test_every_event_is_what_the_file_says(golden: tuple[Any, Snapshot]) -> None:
    raw, snapshot = golden
    assert len(snapshot.events) == len(raw["device_traces"])
    for events, entries in zip(snapshot.events, raw["device_traces"], strict=True):
        assert len(events) == len(entries)
        assert events.action.tolist() == [Action[entry["action"].upper()] for entry in entries]
        assert events.address.tolist() == [entry.get("addr", 0) for entry in entries]
        assert events.size_bytes.tolist() == [entry["size"] for entry in entries]
        assert events.stream.tolist() == [entry.get("stream", 0) for entry in entries]
        assert events.time_us.tolist() == [entry.get("time_us", 0) for entry in entries]
        for number in {0, len(entries) // 2, len(entries) - 1} & set(range(len(entries))):
            expected = [
                (frame["filename"], frame["line"], frame["name"])
                for frame in entries[number].get("frames", [])
            ]
            assert snapshot.stacks.of(int(events.stack[number])) == expected


def test_every_segment_and_block_is_what_the_file_says(golden: tuple[Any, Snapshot]) -> None:
    raw, snapshot = golden
    segments, blocks = snapshot.segments, snapshot.blocks
    assert segments.total_bytes.tolist() == [s["total_size"] for s in raw["segments"]]
    assert segments.allocated_bytes.tolist() == [s["allocated_size"] for s in raw["segments"]]
    assert segments.address.tolist() == [s["address"] for s in raw["segments"]]
    assert segments.is_large.tolist() == [s["segment_type"] == "large" for s in raw["segments"]]
    rows = [(number, b) for number, s in enumerate(raw["segments"]) for b in s["blocks"]]
    assert blocks.segment.tolist() == [number for number, _ in rows]
    assert blocks.size_bytes.tolist() == [block["size"] for _, block in rows]
    assert blocks.state.tolist() == [STATES[block["state"]] for _, block in rows]
    assert blocks.requested_bytes.tolist() == [block.get("requested_size", 0) for _, block in rows]
    for number, address in enumerate(segments.address.tolist()):
        first, last = segments.first_block[number], segments.first_block[number + 1]
        if first < last:
            assert blocks.address[first] == address
    assert snapshot.unknown == {}


def test_the_settings_are_as_they_are_written(golden: tuple[Any, Snapshot]) -> None:
    raw, snapshot = golden
    assert snapshot.settings == raw.get("allocator_settings", {})
    assert len(snapshot.annotations) == len(raw.get("external_annotations", []))
    assert snapshot.record is None


def event(action: str, **fields: Any) -> dict[str, Any]:
    return {"action": action, "addr": 2**40, "size": 512, "stream": 0, **fields}


def test_what_is_not_known_is_counted_and_the_rest_is_read(write: Write) -> None:
    trace = [event("alloc", colour="red"), event("teleport"), event("alloc"), {"addr": 1}]
    block = {"size": 512, "state": "haunted", "owner": "me"}
    segment = {"address": 4096, "total_size": 512, "blocks": [block], "shape": "round"}
    snapshot = read_snapshot(
        write({"segments": [segment], "device_traces": [trace], "weather": "fine"})
    )
    assert snapshot.unknown == Counter(
        {"weather": 1, "event key colour": 1, "action teleport": 1, "action (none)": 1,
         "block key owner": 1, "state haunted": 1, "segment key shape": 1}
    )  # fmt: skip
    assert snapshot.events[0].action.tolist() == [0, 255, 0, 255]
    assert snapshot.blocks.state.tolist() == [BlockState.UNKNOWN]


def test_pools_contexts_and_metadata_are_kept(write: Write) -> None:
    trace = [
        event("alloc", pool_id=(0, 1), compile_context="N/A", user_metadata="step 3"),
        event("alloc", pool_id=(0, 0), compile_context="graph 0", user_metadata=""),
        event("alloc"),
        event("annotate", internal_metadata="weight"),
        {"action": "oom", "device_free": 77, "size": 4096, "stream": 5},
    ]
    snapshot = read_snapshot(write({"segments": [], "device_traces": [trace, []]}))
    events, empty = snapshot.events
    assert len(empty) == 0
    assert [snapshot.pools[number] for number in events.pool] == [(0, 1)] + [(0, 0)] * 4
    texts = [snapshot.texts[number] for number in events.context]
    assert texts == ["step 3", "graph 0", "", "weight", ""]
    assert (events.address[-1], events.action[-1]) == (77, Action.OOM)


@pytest.mark.parametrize("traces", [[[event("alloc")]], [event("alloc")]], ids=["lists", "flat"])
def test_pinned_host_memory_is_kept_apart(write: Write, traces: list[Any]) -> None:
    """torch 2.15 has one trace of the host."""
    segment = {"address": 4096, "total_size": 512, "blocks": []}
    raw = {"segments": [], "device_traces": [], "host_segments": [segment], "host_traces": traces}
    snapshot = read_snapshot(write(raw))
    assert (len(snapshot.segments), len(snapshot.host_segments)) == (0, 1)
    assert len(snapshot.host_events[0]) == 1 and snapshot.events == ()


def test_the_oldest_forms_are_read(write: Write) -> None:
    frames = [{"filename": "a.py", "line": 7, "name": "f"}]
    history = [{"addr": 4096, "real_size": 400, "frames": frames}]
    block = {"size": 512, "state": "active_allocated", "history": history}
    segments = [{"address": 4096, "total_size": 1024,
                 "blocks": [block, {"size": 512, "state": "inactive"}]}]  # fmt: skip
    snapshot = read_snapshot(write(segments))
    assert snapshot.blocks.address.tolist() == [4096, 4608]
    assert snapshot.blocks.requested_bytes.tolist() == [400, 0]
    assert snapshot.stacks.of(int(snapshot.blocks.stack[0])) == [("a.py", 7, "f")]
    assert snapshot.settings == {} and snapshot.events == ()


@pytest.mark.parametrize("value", [{"weights": 1}, 5, "segments", None, {}])
def test_another_pickle_is_refused_with_what_was_expected(write: Write, value: Any) -> None:
    message = r"not a memory snapshot: it has no \"segments\"; expected what torch\.cuda\.memory"
    with pytest.raises(SnapshotError, match=message):
        read_snapshot(write(value))


@pytest.mark.parametrize(
    "raw",
    [
        {"segments": [{"blocks": 3}]},
        {"segments": [], "device_traces": [[{"action": 3, "addr": "x", "frames": 5}]]},
        {"segments": [], "device_traces": [[{"frames": [{"filename": 3, "line": "x"}, {}]}]]},
        {"segments": [], "allocator_settings": [1], "external_annotations": [3, {"name": 4}]},
        {"segments": [], "device_traces": [[{"pool_id": (1,)}, {"pool_id": ("a", "b")}]]},
    ],
)
def test_values_of_the_wrong_kind_count_as_missing(write: Write, raw: Any) -> None:
    snapshot = read_snapshot(write(raw))
    assert all(size <= 0 for size in snapshot.segments.total_bytes.tolist())


def made_up(kind: str, name: str, instead: str) -> dict[str, Any]:
    """A snapshot of a torch 2.16 that calls a field, or an action, otherwise."""
    block = {"address": 4096, "size": 512, "requested_size": 500, "state": "active_allocated"}
    segment = {"address": 4096, "total_size": 512, "blocks": [block]}
    trace = [event("alloc", time_us=1), event("free_completed", time_us=2)]
    raw: dict[str, Any] = {"segments": [segment], "device_traces": [trace]}
    for row in {"": [raw], "event": trace, "segment": [segment], "block": [block]}[kind]:
        if name in row:
            row[instead] = row.pop(name)
        elif row.get("action") is not None:
            row["action"] = row["action"].upper()
    return raw


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("", "device_traces"),
        *(("event", name) for name in ("action", "addr", "size")),
        *(("segment", name) for name in ("address", "total_size", "blocks")),
        *(("block", name) for name in ("size", "state")),
    ],
)
def test_a_renamed_field_is_refused_in_one_sentence(write: Write, kind: str, name: str) -> None:
    """Before, addresses that were not read made a peak of 8 GiB one of 40."""
    who = f"no {kind} in it has" if kind else "it has no"
    message = (
        f"{who} '{name}', and 'renamed' is not known; it is of a PyTorch that this ullage does "
        "not know: use a newer ullage"
    )
    with pytest.raises(SnapshotError, match=f"{message}$"):
        read_snapshot(write(made_up(kind, name, "renamed")))


def test_actions_of_which_none_is_known_are_refused(write: Write) -> None:
    with pytest.raises(SnapshotError, match="no action in it is known, such as 'ALLOC'; it is of"):
        read_snapshot(write(made_up("event", "none of them", "")))


def test_a_renamed_field_that_no_byte_depends_on_is_counted(write: Write) -> None:
    snapshot = read_snapshot(write(made_up("event", "time_us", "moment")))
    assert snapshot.unknown == {"event key moment": 2}


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
NESTED: Any = []
for _ in range(100):
    NESTED = [NESTED]
SEGMENT = {"address": 4096, "total_size": 512, "blocks": []}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([], "not a memory snapshot"),
        ([[], []], r"not a memory snapshot: a segment is \[\]"),
        (CYCLE, "not a memory snapshot: a segment is a list of lists"),
        (NESTED, "not a memory snapshot: a segment is a list of lists"),
        ({"segments": 5}, "segments is 5; expected a list"),
        ({"segments": [], "device_traces": 7}, "device_traces is 7; expected a list"),
        ({"segments": [], "device_traces": [6]}, "the trace of a device is 6; expected a list"),
        ({"segments": [], "device_traces": [[8]]}, "an event is 8"),
        ({"segments": [{**SEGMENT, "blocks": [4]}]}, "a block is 4"),
        ({"segments": [{**SEGMENT, "total_size": 2**70}]}, "total_size of segment 0 is 11805916"),
        ({"segments": [SEGMENT, {**SEGMENT, "total_size": -1}]}, "total_size of segment 1 is -1"),
        ({"segments": [{**SEGMENT, "allocated_size": float("nan")}]}, "allocated_size .* is nan"),
        ({"segments": [{**SEGMENT, "address": 2**70}]}, "address of segment 0 is 11805916"),
        ({"segments": [{**SEGMENT, "blocks": [{"size": -5}]}]}, "size of block 0 is -5"),
        ({"segments": [{**SEGMENT, "blocks": [{"size": "5"}]}]}, "size of block 0 is '5'"),
        ({"segments": [], "device_traces": [[event("alloc", size=2**59)]]}, "size of event 0"),
        ({"segments": [], "device_traces": [[event("oom", size=-1)]]}, "size of event 0 is -1"),
    ],
)
def test_what_no_allocator_holds_is_refused_with_its_field(
    write: Write, raw: Any, message: str
) -> None:
    with pytest.raises(SnapshotError, match=message):
        read_snapshot(write(raw))


def test_hostile_tables_are_one_clear_error_at_once(write: Write) -> None:
    events = [event("alloc") for _ in range(1000)]
    with pytest.raises(SnapshotError, match="rows by referring to the same ones repeatedly"):
        read_snapshot(write({"segments": [], "device_traces": [events] * 500}))
    with pytest.raises(SnapshotError, match="traces of 100000 devices; up to 1024 are"):
        read_snapshot(write({"segments": [], "device_traces": [[] for _ in range(100_000)]}))


def test_a_million_segments_are_read_in_a_moment(write: Write) -> None:
    snapshot = read_snapshot(write({"segments": [{} for _ in range(1_000_000)]}))
    assert len(snapshot.segments) == 1_000_000
    assert len(snapshot.blocks) == 0


def test_every_pool_is_told_from_every_other(write: Write) -> None:
    pools: list[Any] = [(0, 0), (0, 1), (7, 0), [7, 0], (1, 2, 3), (1,), None, "x", (0, None)]
    trace = [event("alloc", pool_id=pool) for pool in pools] + [event("alloc")]
    snapshot = read_snapshot(write({"segments": [], "device_traces": [trace]}))
    expected = [(0, 0), (0, 1), (7, 0), (7, 0), *[(0, 0)] * 6]
    assert [snapshot.pools[number] for number in snapshot.events[0].pool] == expected


def test_a_record_that_is_none_is_left_out(write: Write) -> None:
    assert read_snapshot(write({"segments": [], "ullage": [1]})).record is None
