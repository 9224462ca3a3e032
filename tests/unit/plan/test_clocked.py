"""The clock's seconds for a step and the blocks of a program."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ullage.clock.step_time import NO_MODULE, Interval
from ullage.search.costs.blocks import Block
from ullage.search.costs.clocked import Seconds, Timed, step_seconds

BASE = Seconds(np.array([0.2, 0.6]), 1.0)
BLOCKS = (Block("h.0", "B"), Block("h.1", "B"))


def timed(seconds: float, num_tokens: int = 0) -> Timed:
    return Timed(Interval(0.8 * seconds, seconds, 1.5 * seconds), num_tokens)


def report(by_module: dict[str, float] | None) -> Any:
    """Of a run whose modules add so many seconds to its step; None: it was not timed."""
    if by_module is None:
        return SimpleNamespace(time=None)
    step = Interval(*[sum(by_module.values())] * 3)
    time = SimpleNamespace(
        step=step, extremes=None, num_tokens=0, seconds_by_module=lambda: by_module
    )
    return SimpleNamespace(time=time)


def test_a_block_takes_what_the_modules_in_it_take() -> None:
    modules = {"": 1.0, "h": 2.0, "h.0": 3.0, "h.0.mlp": 4.0, "h.1.attn.q": 5.0, NO_MODULE: 6.0}
    seconds = step_seconds(report(modules), BLOCKS)
    assert seconds.blocks.tolist() == [7.0, 5.0] and seconds.step == 21.0
    assert step_seconds(report(modules), ()).step == 21.0


def test_a_run_that_was_not_timed_takes_as_long_as_the_unchanged_program() -> None:
    seconds = step_seconds(report(None), BLOCKS)
    assert seconds.step == 0.0 and seconds.beside(BASE) is BASE


def test_what_a_technique_adds_is_divided_as_it_adds_to_each_block() -> None:
    """0.1 and 0.3 to the blocks, and 0.2 outside of them."""
    seconds = Seconds(np.array([0.3, 0.9]), 1.6).beside(BASE)
    assert seconds.step == 1.6
    assert seconds.blocks == pytest.approx([0.2 + 0.15, 0.6 + 0.45])


@pytest.mark.parametrize("step_s", [0.7, 1.0, 1.3])
def test_all_blocks_under_a_technique_take_what_its_run_took(step_s: float) -> None:
    seconds = Seconds(np.array([0.05, 0.7]), step_s).beside(BASE)
    assert (seconds.blocks - BASE.blocks).sum() == pytest.approx(step_s - 1.0)


def test_what_no_block_takes_longer_for_is_divided_equally() -> None:
    assert Seconds(BASE.blocks, 1.2).beside(BASE).blocks == pytest.approx([0.3, 0.7])


def test_the_same_work_takes_the_same_time() -> None:
    """A setting of the allocator is no slower by a synchronisation more."""
    assert Seconds(np.array([0.2003, 0.6]), 1.0004).beside(BASE) is BASE


def test_blocks_that_do_the_same_work_take_equally_long() -> None:
    seconds = Seconds(np.array([1.0, 4.0, 3.0]), 9.0).evened(np.array([0, 1, 0]))
    assert seconds.blocks.tolist() == [2.0, 4.0, 2.0] and seconds.step == 9.0


def test_a_program_without_blocks_has_times_too() -> None:
    nothing = np.zeros(0)
    base = Seconds(nothing, 1.0).evened(np.zeros(0, dtype=np.int64))
    assert Seconds(nothing, 1.3).beside(base).step == pytest.approx(1.3)


def test_several_steps_that_do_one_together_add_up() -> None:
    assert timed(1.0, 8).times(2) == Timed(Interval(1.6, 2.0, 3.0), 8)
