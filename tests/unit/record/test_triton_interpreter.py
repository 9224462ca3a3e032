"""The values of a kernel's program: what is made of unknown ones is unknown."""

from __future__ import annotations

import numpy as np
import pytest

from ullage.players.inside.values.triton_interpreter import (
    Lanes,
    Language,
    NotFollowedError,
    Region,
)

START = 4096


def make(
    values: list[int], known: list[bool], *, budget: int = 10_000
) -> tuple[Language, Region, Lanes]:
    """A language whose memory holds so many int32, and the address of the first."""
    data = np.array(values, dtype=np.int32).view(np.uint8)
    region = Region(START, data, np.repeat(np.array(known), 4))
    address = Lanes(np.int64(START), None, np.dtype("i4"), START)
    return Language((1, 1, 1), [region], budget), region, address


def test_arithmetic_is_that_of_c() -> None:
    values = Lanes(np.array([-7, 7], dtype=np.int32))
    assert (values // 2).data.tolist() == [-3, 3]
    assert (values % 4).data.tolist() == [-3, 3]
    assert (10 - values).data.tolist() == [17, 3]
    assert (values + np.int32(1)).data.dtype == np.int32


def test_what_is_made_of_an_unknown_value_is_unknown() -> None:
    language, _region, address = make([1, 2, 3], [True, False, True])
    loaded = language.load(address + language.arange(0, 3))
    assert (loaded + 1).known.tolist() == [True, False, True]
    chosen = language.where(Lanes([True, True, False]), 5, loaded)
    assert chosen.known.tolist() == [True, True, True]
    with pytest.raises(NotFollowedError):
        bool(loaded[1:2] > 0)


def test_a_store_of_an_unknown_value_makes_unknown() -> None:
    language, region, address = make([1, 2, 3], [True] * 3)
    language.store(address + language.arange(0, 3), Lanes([7, 8, 9], [True, False, True]))
    assert region.data.view(np.int32)[[0, 2]].tolist() == [7, 9]
    assert region.known.reshape(3, 4).all(axis=1).tolist() == [True, False, True]


def test_a_store_at_an_unknown_place_makes_all_of_its_memory_unknown() -> None:
    language, region, address = make([1, 2, 3], [True] * 3)
    language.store(address + Lanes(np.int32(1), np.False_), 7)
    assert not region.known.any()


def test_a_store_that_may_not_happen_makes_unknown() -> None:
    language, region, address = make([1, 2], [True] * 2)
    language.store(address + language.arange(0, 2), 7, mask=Lanes([True, True], [True, False]))
    assert region.data.view(np.int32)[0] == 7
    assert region.known.reshape(2, 4).all(axis=1).tolist() == [True, False]


def test_a_load_beyond_memory_is_unknown_and_a_masked_one_is_what_stands_in() -> None:
    language, _region, address = make([1, 2], [True] * 2)
    block = language.arange(0, 4)
    assert language.load(address + block).known.tolist() == [True, True, False, False]
    masked = language.load(address + block, mask=block < 2, other=-1)
    assert (masked.data.tolist(), masked.known.tolist()) == ([1, 2, -1, -1], [True] * 4)


def test_too_long_a_program_is_given_up() -> None:
    language, _region, address = make([1], [True], budget=100)
    language.load(address)
    with pytest.raises(NotFollowedError):
        language.load(address)
