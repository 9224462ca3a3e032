"""Assumptions: what can be asked for, and what it comes to."""

from __future__ import annotations

import pytest

from ullage.ground.errors import SpecError
from ullage.players.inside.values.assume import WORST_CASE, Assumed, Experts, Plausibility


@pytest.mark.parametrize(
    ("texts", "found", "experts"),
    [
        ((), 100, Experts.WORST),
        (("nonzero=all",), 100, Experts.WORST),
        (("nonzero=half",), 50, Experts.WORST),
        (("nonzero=none",), 0, Experts.WORST),
        (("nonzero=0.1", "experts=balanced"), 10, Experts.BALANCED),
        (("experts=worst",), 100, Experts.WORST),
    ],
)
def test_assumptions_are_what_they_say(
    texts: tuple[str, ...], found: int, experts: Experts
) -> None:
    assumed = Assumed.parse(texts)
    assert (assumed.found(100), assumed.experts) == (found, experts)
    assert Assumed.parse(assumed.text().split(",")) == assumed


def test_values_are_plausible_unless_zeros_are_asked_for() -> None:
    assert Assumed.parse([]).values is Plausibility.PLAUSIBLE
    zeros = Assumed.parse(["values=zeros"])
    assert zeros.values is Plausibility.ZEROS
    assert Assumed.parse(zeros.text().split(",")) == zeros


def test_a_fraction_is_rounded_up() -> None:
    assert Assumed.parse(["nonzero=0.3"]).found(11) == 4


def test_without_any_it_is_the_worst_case() -> None:
    assert Assumed.parse([]) == WORST_CASE


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["nonzero"], "is not known; expected nonzero="),
        (["unique=half"], "is not known"),
        (["nonzero=2"], "is not a share of elements"),
        (["nonzero=-0.1"], "is not a share of elements"),
        (["nonzero=nan"], "is not a share of elements"),
        (["nonzero=some"], "expected all, half, none or a fraction"),
        (["experts=even"], "expected worst or balanced"),
        (["values=ones"], "expected plausible or zeros"),
        (["nonzero=half", "nonzero=all"], "twice"),
    ],
)
def test_others_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Assumed.parse(texts)
