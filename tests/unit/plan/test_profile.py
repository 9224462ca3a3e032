"""What runs with all blocks treated alike say of mixtures: to the byte, against the mixtures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ullage.log.model import Record
from ullage.search.costs.blocks import Block
from ullage.search.costs.profile import Stretch, kept_by_module, read_profile
from ullage.search.solver.problem import make_problem

MakeRecord = Callable[..., Record]
# Of each block: what it keeps, its output, and what its backward takes beside.
BLOCKS = ((40, 5, 7), (60, 6, 8), (50, 4, 9))
HEAD = 30


def script(treated: Sequence[bool], head: int = HEAD) -> str:
    """A step of a chain, in the words of `make_record`. A block that is treated keeps its output
    alone, and makes the rest again in backward.
    """
    words = ["+100", "=parameter", "F"]
    for number, ((kept, output, _), is_treated) in enumerate(zip(BLOCKS, treated, strict=True)):
        words += [f">blocks.{number}", f"+{kept}"]
        words += [f"-{kept}", f"+{output}"] if is_treated else [f"+{output}"]
    words += ["<", "f", f"+{head}", "B", f"-{head}"]
    for number in reversed(range(len(BLOCKS))):
        kept, output, beside = BLOCKS[number]
        words += [f">blocks.{number}", *([f"+{kept}"] if treated[number] else []), f"+{beside}"]
        words += [f"-{kept}", f"-{beside}", f"-{output}"]
    return " ".join([*words, "<", "b", "O", "+20", "-20", "o", "S"])


@pytest.fixture
def blocks() -> tuple[Block, ...]:
    """Those of the script."""
    return tuple(Block(f"blocks.{number}", "Block") for number in range(len(BLOCKS)))


@pytest.mark.parametrize("head", [1, HEAD, 200])
def test_a_mixture_takes_what_its_own_run_takes(
    make_record: MakeRecord, blocks: tuple[Block, ...], head: int
) -> None:
    alike = [read_profile(make_record(script([on] * 3, head)), blocks) for on in (False, True)]
    problem = make_problem(alike, [np.zeros(3), np.ones(3)])
    for choice in itertools.product((0, 1), repeat=3):
        seen = read_profile(make_record(script(list(map(bool, choice)), head)), blocks).peak_bytes
        assert problem.peak_bytes(np.array(choice)) == seen, choice


def test_what_blocks_keep_is_what_lives_when_backward_begins(
    make_record: MakeRecord, blocks: tuple[Block, ...]
) -> None:
    as_it_is, treated = (
        read_profile(make_record(script([on] * 3)), blocks) for on in (False, True)
    )
    assert as_it_is.kept_bytes.tolist() == [45, 66, 54]
    assert treated.kept_bytes.tolist() == [5, 6, 4]


def test_each_stretch_names_the_blocks_that_are_live_in_it(
    make_record: MakeRecord, blocks: tuple[Block, ...]
) -> None:
    live_blocks = read_profile(make_record(script([False] * 3)), blocks).live_blocks
    assert live_blocks[Stretch("forward", 0)].tolist() == [False, False, False]
    assert live_blocks[Stretch("forward", 2)].tolist() == [True, True, False]
    assert live_blocks[Stretch("after forward", 2)].tolist() == [True, True, True]
    assert live_blocks[Stretch("backward", 1)].tolist() == [True, False, False]


def test_of_two_steps_the_higher_counts(make_record: MakeRecord, blocks: tuple[Block, ...]) -> None:
    once = script([False] * 3)
    twice = once + " +1000 " + once.partition("F")[2].join(("F", ""))
    one, two = (read_profile(make_record(text), blocks) for text in (once, twice))
    assert two.kept_bytes.tolist() == one.kept_bytes.tolist()
    for stretch, rest in one.rest_bytes.items():
        if stretch.own >= 0:
            assert two.rest_bytes[stretch] == rest + 1000


def test_what_a_module_keeps_is_counted_where_it_was_born(make_record: MakeRecord) -> None:
    record = make_record("F >a +4 >a.b +6 -6 +2 f < B -4 -2 b O o S")
    assert kept_by_module(record) == {"a": 4, "a.b": 2}


def test_a_program_without_backward_keeps_nothing(
    make_record: MakeRecord, blocks: tuple[Block, ...]
) -> None:
    profile = read_profile(make_record("F >blocks.0 +4 -4 < f S"), blocks)
    assert profile.kept_bytes.tolist() == [0, 0, 0]
    assert profile.peak_bytes == 4
