"""Builders: a memory snapshot, as torch writes one, from a line of text; a program's report."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ullage.explain.program import Program
from ullage.explain.run import RunReport, explain_run
from ullage.explain.snapshot import SnapshotReport, explain_snapshot
from ullage.facts.gpus.catalog import Gpu
from ullage.ground.units import KIB, MIB
from ullage.log.model import Record
from ullage.log.snapshot import Snapshot
from ullage.log.snapshot_reader import read_snapshot

_MARKS = {
    "F": ("forward_begin", {"grad": True}), "F1": ("forward_begin", {"grad": True, "module": 0}),
    "F2": ("forward_begin", {"grad": True, "module": 1}), "N": ("forward_begin", {"grad": False}),
    "f": ("forward_end", None), "fa": ("forward_end", {"autocast": True}),
    "B": ("backward_begin", None), "b": ("backward_end", None),
    "O": ("optimizer_begin", None), "o": ("optimizer_end", None),
}  # fmt: skip
_ALLOC = re.compile(
    r"(?P<name>\w+)\+(?P<size>\d+)(?P<unit>k?)(@(?P<stack>[\w:>./-]+))?(=(?P<owner>\w+)(/(?P<path>[\w.#]+))?)?"
)
_CHAINS = {"v": "x in train()", "o": "Out[3]", "e": "y in train() of cell 4 (sys.last_traceback)"}
_BASE = 1 << 36


class SnapshotBuilder:
    """Segments that never come back, blocks placed first-fit; sizes in MiB, so that the allocator's
    rounding changes nothing.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.segments: list[dict[str, Any]] = []
        self.live: dict[str, dict[str, Any]] = {}
        self.notes: list[dict[str, Any]] = []
        self.rows: list[tuple[int, int, int, int, int]] = []
        self.marks: list[list[Any]] = []
        self.claims: list[list[Any]] = []
        self.ooms: list[dict[str, Any]] = []
        self.last_uses: dict[int, int] = {}
        self.copies: list[list[int]] = []
        self.holders: list[list[Any]] = []
        self.graphs: list[list[Any]] = []
        self.pinned: list[list[int]] = []
        self.num_steps = 0

    def add(self, script: str) -> None:
        """Words: [64 a segment of 64 MiB; {64 one of a private pool; a+4 block a of 4 MiB
        (a+4k of 4 KiB),
        a+4@main:3>layer:7 from line 7 of layer, called from line 3 of main, =parameter claimed,
        =parameter/Net.0.weight of a module;
        a- it goes; F f N B b O o marks of ullage's record, S a step ends; !16:2 a request of 16 MiB
        fails with 2 MiB free; F1 and F2 are forwards of two modules. Only of the record: a~ block a
        is used; a< it is copied to, from memory that is pinned (a<p), waited for (a<w), on another
        stream (a<s), or all (a<pws);
        ^64 64 MiB are pinned; a?v a search finds block a by a variable, a?o by an output of a cell,
        a?e by a traceback (a?eg: it has a graph).
        """
        for word in script.split():
            if word[0] in "[{":
                self._add_segment(int(word[1:]) * MIB, (0, 1) if word[0] == "{" else (0, 0))
            elif word == "S":
                self.marks.append([len(self.rows), "step", self.num_steps])
                self.num_steps += 1
                self._note("Optimizer.step#SGD.step", "END")
            elif word in _MARKS:
                self.marks.append([len(self.rows), *_MARKS[word]])
            elif word[0] == "!":
                self._fail(*(int(part) * MIB for part in word[1:].split(":")))
            elif word.endswith("-"):
                self._free(word[:-1])
            elif word.endswith("~"):
                self.last_uses[self.live[word[:-1]]["row"]] = len(self.rows)
            elif word[0] == "^":
                self.pinned.append([len(self.rows), int(word[1:]) * MIB])
            elif "?" in word:
                name, root = word.split("?")
                chain = _CHAINS[root[0]]
                self.holders.append([len(self.rows), 0, self.live[name]["address"], chain])
                self.graphs += [[len(self.rows), 9, chain]] if root.endswith("g") else []
            elif "<" in word:
                self._copy(*word.split("<"))
            else:
                self._allocate(word)

    def file(self, *, has_record: bool, **changes: Any) -> dict[str, Any]:
        """What torch would write."""
        found: dict[str, Any] = {
            "segments": [self._segment(one) for one in self.segments],
            "device_traces": [self.events],
            "allocator_settings": {"expandable_segments": False},
            "external_annotations": self.notes,
        }
        if has_record:
            found["ullage"] = self._record()
        return found | changes

    def _event(self, action: str, address: int, size: int, frames: list[Any]) -> None:
        self.events.append(
            {"action": action, "addr": address, "size": size, "stream": 0,
             "time_us": 1000 * len(self.events) + 1000, "frames": frames}
        )  # fmt: skip

    def _note(self, name: str, stage: str) -> None:
        time_us = 1000 * len(self.events) + 500
        self.notes.append({"name": name, "stage": stage, "time_us": time_us, "device": 0})

    def _add_segment(self, size: int, pool: tuple[int, int]) -> None:
        address = _BASE * (len(self.segments) + 1)
        self.segments.append({"address": address, "size": size, "pool": pool})
        self._event("segment_alloc", address, size, [])
        self.events[-1]["pool_id"] = pool

    def _allocate(self, word: str) -> None:
        match = _ALLOC.fullmatch(word)
        assert match is not None, f"{word!r} is no word of a script"
        unit = KIB if match["unit"] else MIB
        size, frames = int(match["size"]) * unit, _frames(match["stack"] or "")
        address = self._place(size)
        self.live[match["name"]] = {"address": address, "size": size, "frames": frames,
                                    "row": len(self.rows)}  # fmt: skip
        self._event("alloc", address, size, frames)
        self.rows.append((address, size, self._reserved(), 0, 0))
        if match["owner"]:
            name = match["path"] or match["name"]
            self.claims.append([len(self.rows), 0, address, match["owner"], name])

    def _place(self, size: int) -> int:
        for segment in self.segments:
            place = segment["address"]
            for block in sorted(self.live.values(), key=lambda one: one["address"]):
                if (
                    not segment["address"]
                    <= block["address"]
                    < segment["address"] + segment["size"]
                ):
                    continue
                if block["address"] - place >= size:
                    return int(place)
                place = block["address"] + block["size"]
            if segment["address"] + segment["size"] - place >= size:
                return int(place)
        raise AssertionError(f"no segment has {size} bytes free")

    def _free(self, name: str) -> None:
        block = self.live.pop(name)
        for action in ("free_requested", "free_completed"):
            self._event(action, block["address"], block["size"], [])
        self.rows.append((block["address"], -block["size"], self._reserved(), 0, 0))

    def _copy(self, name: str, how: str) -> None:
        block = self.live[name]
        flags = 1 + 2 * ("p" in how) + 4 * ("w" in how)
        stream = 7 if "s" in how else 0
        self.copies.append([len(self.rows), 0, block["address"], block["size"], stream, flags])

    def _fail(self, size: int, free: int) -> None:
        self.ooms.append({"position": len(self.rows), "device": 0, "requested_bytes": size,
                          "message": None, "where": None})  # fmt: skip
        self.rows.append((0, size, self._reserved(), 0, 1))
        self._event("oom", 0, size, [])
        del self.events[-1]["addr"]
        self.events[-1]["device_free"] = free

    def _reserved(self) -> int:
        return sum(one["size"] for one in self.segments)

    def _segment(self, segment: dict[str, Any]) -> dict[str, Any]:
        begin, end = segment["address"], segment["address"] + segment["size"]
        inside = sorted(
            (one for one in self.live.values() if begin <= one["address"] < end),
            key=lambda one: one["address"],
        )
        blocks, place = [], begin
        for one in inside:
            if one["address"] > place:
                blocks.append(_free_block(place, one["address"] - place))
            blocks.append({"address": one["address"], "size": one["size"],
                           "requested_size": one["size"], "state": "active_allocated",
                           "frames": one["frames"]})  # fmt: skip
            place = one["address"] + one["size"]
        if place < end:
            blocks.append(_free_block(place, end - place))
        live = sum(one["size"] for one in inside)
        return {
            "device": 0, "address": begin, "total_size": segment["size"], "allocated_size": live,
            "active_size": live, "requested_size": live, "stream": 0, "segment_type": "large",
            "segment_pool_id": segment["pool"], "is_expandable": False, "frames": [],
            "blocks": blocks,
        }  # fmt: skip

    def _record(self) -> dict[str, Any]:
        columns = np.array(self.rows, dtype=np.int64).reshape(-1, 5)
        events = {
            "address": columns[:, 0].astype("<i8").tobytes(),
            "bytes": columns[:, 1].astype("<i8").tobytes(),
            "reserved": columns[:, 2].astype("<i8").tobytes(),
            "device": columns[:, 3].astype("u1").tobytes(),
            "kind": columns[:, 4].astype("u1").tobytes(),
        }
        device = {
            "index": 0, "name": "NVIDIA Test", "total_bytes": 4096 * MIB, "context_bytes": 96 * MIB,
            "non_torch_bytes": 0, "peak_requested_bytes": 0, "peak_allocated_bytes": 0,
            "peak_reserved_bytes": self._reserved(), "num_allocs": 1, "num_segments": 1,
            "num_ooms": len(self.ooms), "num_alloc_retries": 0,
        }  # fmt: skip
        uses = np.zeros(len(self.rows), dtype="<u4")
        uses[list(self.last_uses)] = list(self.last_uses.values())
        used = {"last_uses": uses.tobytes()} if self.last_uses else {}
        paths = [claim[4].rpartition(".")[0] for claim in self.claims if "." in claim[4]]
        return used | {
            "modules": list(dict.fromkeys(paths)), "copies": self.copies, "pinned": self.pinned,
            "holders": self.holders, "graphs": self.graphs,
            "schema": "ullage.record/1", "ullage": "0.1.0", "torch": "2.15.0+cu132",
            "cuda": "13.2", "python": "3.11.7", "argv": ["train.py"], "pid": 4711, "rank": None,
            "started_s": 1.0, "ended_s": 3.0,
            "exit": {"kind": "returned", "exception": None, "message": None, "where": None,
                     "code": 0},
            "devices": [device], "first_position": 0, "events": events, "marks": self.marks,
            "claims": self.claims, "workspaces": [], "basis": [], "ooms": self.ooms,
            "host_peak_bytes": 0, "pinned_peak_bytes": 0, "warnings": [],
        }  # fmt: skip


def _frames(text: str) -> list[dict[str, Any]]:
    """Frames, innermost first, from "main:3>layer:7"; a function may have a file: lib/a.py/f:1."""
    frames = []
    for call in reversed([part for part in text.split(">") if part]):
        place, _, line = call.partition(":")
        file, _, name = place.rpartition("/")
        frames.append({"filename": file or "train.py", "line": int(line), "name": name})
    return frames


def _free_block(address: int, size: int) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": 0, "state": "inactive",
            "frames": []}  # fmt: skip


@pytest.fixture(scope="session")
def file_of() -> Callable[..., dict[str, Any]]:
    """`file_of("[64 a+4", has_record=True)`: what torch would write; see `SnapshotBuilder.add`."""

    def make(script: str, *, has_record: bool = False, **changes: Any) -> dict[str, Any]:
        builder = SnapshotBuilder()
        builder.add(script)
        return builder.file(has_record=has_record, **changes)

    return make


@pytest.fixture
def snapshot_of(tmp_path: Path, file_of: Callable[..., Any]) -> Callable[..., Snapshot]:
    """The same, written and read."""

    def make(script: str, **options: Any) -> Snapshot:
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(file_of(script, **options)))
        return read_snapshot(path)

    return make


@pytest.fixture
def explained(tmp_path: Path) -> Callable[[dict[str, Any]], SnapshotReport]:
    """What torch would write, explained."""

    def make(file: dict[str, Any]) -> SnapshotReport:
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(file))
        return explain_snapshot(read_snapshot(path))

    return make


@pytest.fixture
def report_of(snapshot_of: Callable[..., Snapshot]) -> Callable[..., SnapshotReport]:
    """The same, explained."""

    def make(script: str, **options: Any) -> SnapshotReport:
        return explain_snapshot(snapshot_of(script, **options))

    return make


@pytest.fixture
def explain(program: Program, small_gpu: Gpu) -> Callable[..., RunReport]:
    """`explain(records, unrecorded=...)`: the report of a program that left those."""

    def make(*records: Record, **changes: Any) -> RunReport:
        return explain_run(
            [(record, None) for record in records],
            program=replace(program, **changes),
            torch="2.15.0",
            gpu=small_gpu,
            is_unlimited=False,
        )

    return make
