"""Births and deaths against a replay that keeps the live blocks in a dict, one event at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ullage.explain.moments.levels import highest_between, read_levels
from ullage.log.blocks import Blocks, find_blocks, read_blocks
from ullage.log.model import Events, Record

Make = Callable[..., Record]
Block = tuple[int, int, int]  # device, address, bytes


@st.composite
def scripts(draw: st.DrawFn) -> str:
    """Blocks that come and go on two devices, with failed allocations between."""
    words: list[str] = []
    live: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(draw(st.integers(0, 40))):
        device = draw(st.sampled_from([0, 0, 1]))
        words.append(f"@{device}")
        action = draw(st.sampled_from("+++--!"))
        if action == "-" and live[device]:
            size = draw(st.sampled_from(live[device]))
            live[device].remove(size)
            words.append(f"-{size}")
        elif action == "!":
            words.append("!99")
        else:
            size = draw(st.integers(1, 6))
            live[device].append(size)
            words.append(f"+{size}")
    return " ".join(words)


def replay(record: Record) -> list[set[Block]]:
    """The live blocks at each position: the oracle."""
    live: set[Block] = set()
    states = [set(live)]
    columns = record.events
    for row in range(len(columns)):
        block = (
            int(columns.device[row]),
            int(columns.address[row]),
            abs(int(columns.size_bytes[row])),
        )
        if columns.kind[row] == 0:
            if columns.size_bytes[row] > 0:
                live.add(block)
            else:
                live.remove(block)
        states.append(set(live))
    return states


def blocks_at(blocks: Blocks, position: int) -> set[Block]:
    return {block_of(blocks, row) for row in np.flatnonzero(blocks.is_live(position - 1))}


def block_of(blocks: Blocks, row: int) -> Block:
    columns = (blocks.device, blocks.address, blocks.size_bytes)
    device, address, size_bytes = (int(column[row]) for column in columns)
    return device, address, size_bytes


def check_no_overlap(blocks: set[Block]) -> None:
    ordered = sorted(blocks)
    for (device, address, size), (next_device, next_address, _) in pairwise(ordered):
        assert device != next_device or address + size <= next_address


@given(script=scripts())
def test_the_live_blocks_at_each_position_are_those_of_a_replay(
    make_record: Make, script: str
) -> None:
    record = make_record(script)
    blocks = read_blocks(record)
    for position, expected in enumerate(replay(record)):
        assert blocks_at(blocks, position) == expected
        check_no_overlap(blocks_at(blocks, position))


@given(script=scripts())
def test_the_levels_at_each_position_are_those_of_a_replay(make_record: Make, script: str) -> None:
    record = make_record(script)
    states = replay(record)
    for device in (0, 1):
        levels = read_levels(record, read_blocks(record), device)
        expected = [sum(size for owner, _, size in blocks if owner == device) for blocks in states]
        assert levels.allocated_bytes.tolist() == expected


@given(script=scripts(), ends=st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_the_highest_level_of_an_interval_is_that_of_its_positions(
    make_record: Make, script: str, ends: tuple[int, int]
) -> None:
    record = make_record(script)
    begin, end = sorted(min(position, len(record.events)) for position in ends)
    levels = read_levels(record, read_blocks(record), 0).allocated_bytes
    expected = max(levels[begin : end + 1])
    peaks = highest_between(levels, np.array([begin, begin]), np.array([end, end]))
    assert peaks.tolist() == [expected, expected]


@given(script=scripts(), data=st.data())
def test_every_address_finds_the_live_block_that_holds_it(
    make_record: Make, script: str, data: st.DataObject
) -> None:
    record = make_record(script)
    table = read_blocks(record)
    states = replay(record)
    position = data.draw(st.integers(0, len(record.events)))
    device, offset = data.draw(st.integers(0, 1)), data.draw(st.integers(-1, 30))
    address = (1 << 30) + offset
    holding = {b for b in states[position] if b[0] == device and b[1] <= address < b[1] + b[2]}
    row = find_blocks(table, *(np.array([n]) for n in (position, device, address)))[0]
    assert ({block_of(table, row)} if row < len(table) else set()) == holding


def test_what_was_never_taken_back_outlives_the_last_event(make_record: Make) -> None:
    blocks = read_blocks(make_record("+4 +2 -4"))
    assert list(zip(blocks.birth, blocks.death, strict=True)) == [(0, 2), (1, 3)]


def test_a_block_from_before_a_capped_log_is_born_with_it(make_record: Make) -> None:
    record = make_record("+4 +2 -4")
    events = type(record.events)(
        *(
            None if (column := getattr(record.events, name)) is None else column[1:]
            for name in record.events.__slots__
        )
    )
    cut = replace(record, events=events, first_position=7)
    blocks = read_blocks(cut)
    assert list(zip(blocks.birth, blocks.death, strict=True)) == [(-1, 1), (0, 2)]
    assert read_levels(cut, blocks, 0).allocated_bytes.tolist() == [4, 6, 2]
    at = (np.array([7, 8, 9]), np.zeros(3, dtype=np.int64), np.full(3, 1 << 30))
    assert find_blocks(blocks, *at).tolist() == [0, 0, 2]


def alternating(record: Record, num_events: int) -> Record:
    """Blocks that come and go one after the other, on few addresses."""
    half = num_events // 2
    address = np.repeat(np.arange(half, dtype=np.int64) % 5000 * 512, 2)
    size = np.tile(np.array([512, -512], dtype=np.int64), half)
    zeros = np.zeros(num_events, dtype=np.uint8)
    reserved = np.zeros(num_events, dtype=np.int64)
    events = Events(address, size, reserved, zeros, zeros, zeros - 1, zeros != 0)
    return replace(record, events=events)


def test_the_time_for_a_million_events_grows_with_their_number(
    make_record: Make, growth_of_time: Callable[..., float]
) -> None:
    record = make_record("")
    assert len(read_blocks(alternating(record, 1_000_000))) == 500_000
    growth = growth_of_time(lambda num: partial(read_blocks, alternating(record, num)), 62_500, 16)
    assert growth < 100, "in proportion it is 16, pair by pair it would be 256"
