"""What the mark gpu_memory takes, and what it says of the rest."""

from __future__ import annotations

import pytest

from ullage.ground.errors import SpecError
from ullage.ground.units import GIB, MIB
from ullage.verbs.testing.limits import Limits, parse_limits


def test_a_mark_without_arguments_limits_nothing() -> None:
    assert parse_limits((), {}) == Limits()
    assert not Limits().has_any


def test_every_argument_has_its_place() -> None:
    named = {"reserved": "2 GiB", "growth": "1 MiB/iter", "leak": 0, "gpu": "A10G"}
    assert parse_limits(("1.5 GiB",), named) == Limits(
        peak_bytes=3 * GIB // 2,
        reserved_bytes=2 * GIB,
        growth_bytes=MIB,
        leak_bytes=0,
        gpu="a10g",
    )


def test_the_limit_may_have_its_name() -> None:
    assert parse_limits((), {"limit": "3 MiB"}) == parse_limits(("3 MiB",), {})


@pytest.mark.parametrize("growth", ["64 KiB", "64 KiB/iter", 65536])
def test_growth_is_a_size_an_iteration(growth: object) -> None:
    assert parse_limits((), {"growth": growth}).growth_bytes == 65536


@pytest.mark.parametrize(
    ("arguments", "named", "said"),
    [
        (("1 GiB", "2 GiB"), {}, "2 arguments without a name"),
        (("1 GiB",), {"limit": "2 GiB"}, "given twice"),
        ((), {"reserve": "1 GiB"}, "did you mean 'reserved'"),
        ((), {"colour": "red"}, "there are limit, reserved, leak, growth, gpu"),
        (("80G",), {}, "limit='80G': '80G' can be read in two ways"),
        ((-1,), {}, "limit=-1"),
        ((1.5,), {}, "limit=1.5 is not a size"),
        ((), {"growth": "fast"}, "growth='fast'"),
        ((), {"gpu": "a10h"}, "did you mean a10 or a10g"),
        ((), {"gpu": 3}, "gpu=3 is not the name of a GPU"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    arguments: tuple[object, ...], named: dict[str, object], said: str
) -> None:
    with pytest.raises(SpecError, match=said.replace("(", r"\(")):
        parse_limits(arguments, named)
