"""What passes without gradients carry to later ones, as one line each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ullage.explain.carried import find_carried
from ullage.explain.moments.course import read_course
from ullage.log.blocks import read_blocks
from ullage.log.model import Record

Make = Callable[..., Record]


def carried(record: Record) -> set[int]:
    """The sizes of the blocks that are carried, which the scripts keep unique."""
    blocks = read_blocks(record)
    found = find_carried(record, blocks, read_course(record))
    return {int(size) for size in blocks.size_bytes[found]}


@pytest.mark.parametrize(
    ("script", "sizes"),
    [
        ("N >layer.attention +7 u7 < f N >layer.attention +9 u7 -7 < f", {7, 9}),
        # Made by the projection, used by the attention that holds it.
        ("N >layer.a.k +7 < f N >layer.a +1 u7 -1 -7 < f", {7}),
        # What the module leaves behind after the last pass is of the same kind.
        ("N >a.b +7 < f N >a.b +1 u7 -1 +8 < f", {7, 8}),
        ("N >a.b +7 < f N >a.b +1 u7 -1 +8 -8 < f", {7}),
        # Used again in no later pass, outside of one, by another module, or by the outermost one.
        ("N >a.b +7 u7 < f N >a.b +1 < f", set()),
        ("N >a.b +7 < f u7 N >a.b +1 < f", set()),
        ("N >last +7 < f N >first +1 u7 < f", set()),
        ("N > +7 < f N > +1 u7 < f", set()),
        ("N +7 f N >a.b +1 u7 < f", set()),
        # A pass with gradients keeps what it keeps for its backward.
        ("F >a.b +7 < f F >a.b +1 u7 < f B b", set()),
        ("+7 N >a.b +1 u7 < f", set()),
    ],
)
def test_what_is_carried(make_record: Make, script: str, sizes: set[int]) -> None:
    assert carried(make_record(script)) == sizes


def test_a_record_that_does_not_know_uses_carries_nothing(make_record: Make) -> None:
    script = "N >a.b +7 < f N >a.b +1 u7 -1 < f"
    assert carried(make_record(script)) == {7}
    record = make_record(script, last_uses=bytes(4 * 3))
    assert carried(record) == set()
