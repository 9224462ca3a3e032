"""Two snapshots compared: every byte of the change has a place, and what it looks like is named."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ullage
from ullage.explain.compare.causes import CauseKind
from ullage.explain.compare.differences import Difference
from ullage.ground.errors import SnapshotError
from ullage.ground.units import MIB

Block = tuple[int, int, str]  # bytes, line, function
Diff = Callable[..., ullage.Diff]
FORWARD, LOSS = "forward", "compute_loss"


def snapshot(blocks: list[Block], **settings: Any) -> dict[str, Any]:
    """What torch would dump of a program that makes these blocks and keeps them, one in a segment;
    the file has been moved elsewhere.
    """
    trace, segments = [], []
    for number, (size, line, function) in enumerate(blocks):
        frames = [
            {"filename": "site-packages/torch/nn/functional.py", "line": 3, "name": "linear"},
            {"filename": f"/somewhere/{len(blocks)}/net/model.py", "line": line, "name": function},
        ]
        address = (number + 1) << 34
        event = {"addr": address, "size": size, "stream": 0, "frames": frames}
        trace += [{**event, "action": "segment_alloc"}, {**event, "action": "alloc"}]
        block = {"address": address, "size": size, "requested_size": size,
                 "state": "active_allocated", "frames": frames}  # fmt: skip
        segments.append({"device": 0, "address": address, "total_size": size, "stream": 0,
                         "segment_type": "large", "blocks": [block]})  # fmt: skip
    return {"segments": segments, "device_traces": [trace], "allocator_settings": settings}


@pytest.fixture
def compare(tmp_path: Path) -> Diff:
    """Compares two lists of blocks."""

    def make(before: list[Block], after: list[Block], **settings: Any) -> ullage.Diff:
        paths = []
        for number, (blocks, used) in enumerate([(before, {}), (after, settings)]):
            path = tmp_path / f"{number}.pickle"
            path.write_bytes(pickle.dumps(snapshot(blocks, **used)))
            paths.append(path)
        return ullage.diff(*paths)

    return make


BASE: list[Block] = [(4 * MIB, line, FORWARD) for line in (10, 20, 30)] + [(8 * MIB, 5, LOSS)]


def changes(found: ullage.Diff) -> dict[str, int]:
    return {change.name: change.changed_bytes for change in found.report.by_site}


def test_the_same_is_the_same(compare: Diff) -> None:
    found = compare(BASE, BASE)
    assert (found.changed_bytes, found.causes, found.report.by_site) == (0, (), ())
    assert found.text().startswith("the peaks are the same: 20.00 MiB allocated")


def test_a_new_place_is_named_with_its_line(compare: Diff) -> None:
    found = compare(BASE, [*BASE, (32 * MIB, 40, "keep"), (32 * MIB, 40, "keep")])
    ((name, changed),) = changes(found).items()
    assert name.endswith("model.py:40 in keep") and changed == found.changed_bytes == 64 * MIB
    (cause,) = found.causes
    assert cause.text == f"unattributed at {name} (new: 2 blocks)"
    assert (cause.kind, cause.changed_bytes) == (CauseKind.PLACE, 64 * MIB)


def test_what_is_gone_is_named(compare: Diff) -> None:
    found = compare(BASE, BASE[:-1])
    (changed,) = changes(found).values()
    assert changed == found.changed_bytes == -8 * MIB
    assert "(gone: 1 block)" in found.causes[0].text
    assert found.causes[0].changed_bytes == -8 * MIB


def test_many_places_that_grow_alike_are_one_cause(compare: Diff) -> None:
    found = compare(BASE, [(2 * size, line, name) for size, line, name in BASE])
    assert found.changed_bytes == 20 * MIB == sum(changes(found).values())
    first, *others = found.causes
    assert (first.kind, first.changed_bytes) == (CauseKind.SCALE, 20 * MIB)
    assert first.text.startswith("another batch or sequence length, 2x as large: 100 %")
    assert {cause.kind for cause in others} == {CauseKind.PLACE}


def test_what_grows_with_the_square_is_a_longer_sequence(compare: Diff) -> None:
    grown = [(size * (4 if name == LOSS else 2), line, name) for size, line, name in BASE]
    (first, *_) = compare(BASE, grown).causes
    assert first.text.startswith("another sequence length, 2x as large: 100 %")


@pytest.mark.parametrize(
    ("grown", "end"),
    [
        ([(2 * size, line, name) for size, line, name in BASE], "(the lines overlap and do not"),
        ([*BASE, *((number * MIB, 60 + number, "keep") for number in range(1, 9))], "all other"),
        ([*BASE, (32 * MIB, 40, "keep")], ""),
    ],
    ids=["overlap", "rest", "whole"],
)
def test_the_reasons_add_up_or_are_said_to_overlap(
    compare: Diff, grown: list[Block], end: str
) -> None:
    found = compare(BASE, grown)
    lines = found.text().partition("Why\n")[2].partition("\n\n")[0].splitlines()
    rest = re.match(r"  \+([\d.]+) MiB: all other", lines[-1])
    shown = sum(cause.changed_bytes for cause in found.causes[:5])
    if end:
        assert end in lines[-1]
    else:
        assert len(lines) == 1 and "overlap" not in lines[-1]
    if "overlap" not in end:
        assert shown + (float(rest[1]) * MIB if rest else 0) == found.changed_bytes


def test_some_places_that_grow_are_no_scale(compare: Diff) -> None:
    grown = [(2 * size if line == 10 else size, line, name) for size, line, name in BASE]
    assert {cause.kind for cause in compare(BASE, grown).causes} == {CauseKind.PLACE}


def test_more_blocks_of_the_same_size_are_something_kept(compare: Diff) -> None:
    found = compare(BASE, [*BASE, *[(4 * MIB, 10, FORWARD)] * 3])
    (row,) = found.report.by_site
    assert row.looks_like == "1 to 4 blocks of the same sizes"


def test_code_that_moved_is_compared_by_its_function(compare: Diff) -> None:
    moved = [(size, line + 7, name) for size, line, name in BASE]
    assert compare(BASE, moved).report.by_site == ()
    grown = [(size + MIB * (name == LOSS), line + 7, name) for size, line, name in BASE]
    (row,) = compare(BASE, grown).report.by_site
    assert row.name.endswith("model.py in compute_loss")
    assert (row.before.lines, row.after.lines, row.changed_bytes) == ((5,), (12,), MIB)


def test_halves_and_other_factors_are_written_as_people_do(compare: Diff) -> None:
    for after, expected in ((4 * MIB, "1/2 as large"), (11 * MIB, "1.38x as large")):
        (row,) = compare([(8 * MIB, 5, LOSS)], [(after, 5, LOSS)]).report.by_site
        assert row.looks_like == f"as many blocks, {expected}"


def test_settings_that_differ_are_told(compare: Diff) -> None:
    found = compare(BASE, BASE, expandable_segments=True)
    assert found.report.differences == (
        Difference(name="setting expandable_segments", before=None, after=True),
    )
    assert "setting expandable_segments  -       True" in found.text()


def test_every_byte_of_the_change_is_in_the_document(compare: Diff) -> None:
    document = compare(BASE, [*BASE[1:], (MIB, 99, "other")]).document
    assert document["schema"] == "ullage.diff/1"
    for rows in (document["by_site"], document["by_category"]):
        assert sum(row["changed_bytes"] for row in rows) == document["changed_allocated_bytes"]
    assert document["categories_are"] == "guessed"


def test_a_file_without_device_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": []}))
    with pytest.raises(SnapshotError, match=r"'.*empty\.pickle' holds no device memory"):
        ullage.diff(path, path)
