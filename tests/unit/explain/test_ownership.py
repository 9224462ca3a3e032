"""Each rule of ownership as one line: what happens to a block, and whose it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tests.rows import each

from ullage.explain.log import read_log
from ullage.explain.moments.course import read_course
from ullage.explain.owners.ownership import CATEGORIES, CLAIM_ORDER, attribute
from ullage.log.blocks import Blocks
from ullage.log.model import Claims, Mark, MarkKind, Record, Workspaces

Make = Callable[..., Record]


def owners(record: Record) -> dict[int, str]:
    """The category of each block by its size, which the scripts keep unique."""
    log = read_log(record)
    return {
        int(size): CATEGORIES[code].value
        for size, code in zip(log.blocks.size_bytes, log.owners.category, strict=True)
    }


@each(
    ("script", "category"),
    [
        # claimed
        ("+7 =parameter F f B b O o S", "parameter"),
        ("F +7 w -7 f", "workspace"),
        ("F +7 w f B -7 b", "workspace"),
        ("+7 =input =parameter F f", "parameter"),
        ("F f B +7 =gradient b O o S -7", "gradient"),
        ("F f B b O +7 =optimizer_state o S", "optimizer_state"),
        ("+7 =gradient =optimizer_state", "optimizer_state"),
        ("+7 w =kv_cache", "kv_cache"),
        # forward
        ("F +7 f B -7 b S", "activation"),
        ("F +7 -7 f B b S", "temporary"),
        ("F +7 f -7 B b S", "activation"),
        ("F f +7 B -7 b S", "activation"),
        ("F f +7 -7 B b S", "temporary"),
        ("F +7 !9", "activation"),
        ("F +7 !9 -7 f F f B b S", "activation"),
        ("F +7 -7 !9 f F f B b S", "temporary"),
        # forward without gradients
        ("N +7 -7 +1 f N f", "temporary"),
        ("N +7 +1 -7 f N f", "activation"),
        ("N +7 f -7 N f", "activation"),
        ("N f +7 N -7 f", "input"),
        ("N f +7 -7 N f", "temporary"),
        # backward and the update
        ("F f B +7 -7 b S", "temporary"),
        ("F f B +7 b -7 O o S", "temporary"),
        ("F f B +7 b O o S -7", "unattributed"),
        ("F f B +7 !9", "temporary"),
        ("F f B b +7 -7 O o S", "temporary"),
        ("F f B b O +7 -7 o S", "temporary"),
        # sent or received
        ("F f B +7 x -7 b S", "communication"),
        ("+7 x F f B b O o S", "communication"),
        ("F +7 x f B -7 b O o S", "activation"),
        ("F +7 x -7 f B b O o S", "communication"),
        ("F +7 x f B b O o S F f B b O o S", "communication"),
        ("F f B +7 x =gradient b O o S -7", "gradient"),
        # recomputed in backward
        ("F f B R +7 r -7 b S", "activation"),
        ("F f B R +7 -7 r b S", "temporary"),
        ("F f B R +7 r !9", "activation"),
        # between the passes
        ("+7 F -7 f B b S", "input"),
        ("F f B b +7 F f B b O o S", "input"),  # the next micro-batch
        ("+7 -7 F f B b S", "unattributed"),
        ("F f B b O o S +7", "unattributed"),
        ("+7", "unattributed"),
    ],
)
def test_a_block_belongs_to(make_record: Make, script: str, category: str) -> None:
    assert owners(make_record(script))[7] == category


@pytest.mark.parametrize("position", range(len(CLAIM_ORDER) - 2))
def test_the_stronger_claim_wins_in_either_order(make_record: Make, position: int) -> None:
    stronger, weaker = (category.value for category in CLAIM_ORDER[position : position + 2])
    for script in (f"+7 ={stronger} ={weaker}", f"+7 ={weaker} ={stronger}"):
        assert owners(make_record(script))[7] == stronger


def test_a_claim_inside_a_block_claims_the_block(make_record: Make) -> None:
    record = make_record("+64 +7", claims=[[2, 0, (1 << 30) + 63, "parameter", ""]])
    assert owners(record) == {64: "parameter", 7: "unattributed"}


def test_a_claim_on_an_address_reaches_only_the_block_that_lived_there_then(
    make_record: Make,
) -> None:
    record = make_record("+8 -8 +7 =parameter -7 +6")
    assert owners(record) == {8: "unattributed", 7: "parameter", 6: "unattributed"}


def test_a_claim_on_nothing_is_left_out(make_record: Make) -> None:
    record = make_record("+7", claims=[[1, 0, 5, "parameter", ""], [1, 3, 1 << 30, "buffer", ""]])
    assert owners(record) == {7: "unattributed"}


def attribute_many(make_record: Make, num: int) -> Callable[[], None]:
    """An attribution of `num` allocations under many marks and claims, ready to run."""
    birth = np.arange(1, num + 1, dtype=np.int64) * 2
    sizes, zeros, end = np.full(num, 512), np.zeros(num, dtype=np.int64), 2 * num + 10
    blocks = Blocks(
        address=np.arange(num, dtype=np.int64) * 512, size_bytes=sizes, requested_bytes=sizes,
        birth=birth, death=np.where(birth % 64 == 0, end, birth + 5), stack=zeros.astype(np.uint32),
        stream=zeros, is_exact=zeros == 0, device=zeros, num_events=end,
    )  # fmt: skip
    cycle = (MarkKind.FORWARD_BEGIN, MarkKind.FORWARD_END, MarkKind.BACKWARD_BEGIN, MarkKind.STEP)
    marks = [Mark(position, cycle[position // 100 % 4]) for position in range(0, 2 * num, 100)]
    rows = np.arange(0, num, 50)
    claims = Claims(
        position=birth[rows] + 1,
        device=np.zeros(len(rows), dtype=np.int64),
        address=blocks.address[rows] + 8,
        category=(CLAIM_ORDER[0],) * len(rows),
        name=("",) * len(rows),
    )
    empty = np.zeros(0, dtype=np.int64)
    scratch = Workspaces(empty, empty, empty, empty, ())
    course = read_course(replace(make_record(""), marks=tuple(marks)))

    def run() -> None:
        codes = attribute(blocks, claims, scratch, course)
        assert (codes[rows] == CATEGORIES.index(CLAIM_ORDER[0])).all()

    return run


def test_the_time_for_many_allocations_grows_with_their_number(
    make_record: Make, growth_of_time: Callable[..., float]
) -> None:
    growth = growth_of_time(partial(attribute_many, make_record), 31_250, 16)
    assert growth < 100, "in proportion it is 16, pair by pair it would be 256"
