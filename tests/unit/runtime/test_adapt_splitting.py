"""Into how many parts a batch is split before its step, by forecasts of its parts."""

from __future__ import annotations

from dataclasses import replace

from ullage.act.guard.adapting.adapt import Adapt, Rules, Situation
from ullage.act.guard.adapting.forecast import Sizes
from ullage.act.guard.adapting.splitting import choose_split

GIB = 1 << 30
LAST = 1
GRADIENTS = GIB


def sizes_of(rows: float) -> Sizes:
    """Of rows of 1,024 tokens."""
    return 1024.0 * rows, 1024.0 * 1024.0 * rows


def situation_of(rows: int) -> Situation:
    """Before a step of so many rows, on the last plan, with 2 of 16 GiB allocated."""
    return Situation(9, 0.0, "program", sizes_of(rows), LAST, 2 * GIB, 2 * GIB, 16 * GIB)


def learned(*rows: int, bytes_of_row: int = GIB) -> Rules:
    """Rules that have done such batches on the last plan."""
    rules = Rules(Adapt(splits=True), LAST + 1)
    for each in rows:
        rules.learn(situation_of(each), 2 * GIB + each * bytes_of_row, is_first=False)
    return rules


def parts_of(rows: int) -> list[tuple[int, Sizes]]:
    """The sizes of two, four and eight parts."""
    return [(count, sizes_of(rows / count)) for count in (2, 4, 8)]


def choose(rules: Rules, rows: int, gradient_bytes: int = GRADIENTS) -> tuple[int, str]:
    """The rung, and why."""
    return choose_split(rules, situation_of(rows), parts_of(rows), gradient_bytes)


def test_a_batch_that_fits_is_whole() -> None:
    assert choose(learned(4, 8, 12), 10) == (LAST, "the whole batch is forecast to fit")


def test_where_nothing_is_known_a_batch_is_whole() -> None:
    assert choose(Rules(Adapt(splits=True), LAST + 1), 64)[0] == LAST


def test_the_fewest_parts_are_chosen_that_fit() -> None:
    # Of 13.5 GiB: 24 rows in two parts are 12 GiB and a GiB of gradients, 32 are 16 GiB.
    assert choose(learned(4, 8, 12), 24)[0] == LAST + 1
    rung, reason = choose(learned(4, 8, 12), 32)
    assert rung == LAST + 2
    assert reason.startswith("no plan is forecast to fit; in 4 parts the batch needs up to 11.")


def test_gradients_of_the_parts_before_count() -> None:
    rules = learned(4, 8, 12)
    assert choose(rules, 24, gradient_bytes=0)[0] == LAST + 1
    assert choose(rules, 24, gradient_bytes=2 * GIB)[0] == LAST + 2


def test_where_no_number_of_parts_fits_it_is_the_most() -> None:
    assert choose(learned(4, 8, 12), 200)[0] == LAST + 3


def test_a_batch_that_was_split_before_is_forecast_as_it_was() -> None:
    rules = learned(4)
    # In proportion to four rows, with gradients: four parts.
    assert choose(rules, 24, gradient_bytes=2 * GIB)[0] == LAST + 2
    done = replace(situation_of(24), rung=LAST + 1)
    rules.learn(done, 2 * GIB + 12 * GIB, is_first=False)
    assert choose(rules, 24, gradient_bytes=2 * GIB)[0] == LAST + 1
    # Beyond it nothing is measured.
    assert choose(rules, 26, gradient_bytes=2 * GIB)[0] == LAST + 2
