"""The assumptions about values that kernels would have computed.

Assumed.parse(["nonzero=half", "experts=balanced"])
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from ullage.ground.errors import SpecError

_FRACTIONS = {"all": 1.0, "half": 0.5, "none": 0.0}


class Experts(enum.Enum):
    """The distribution of tokens over experts: WORST, all to the same; BALANCED, evenly."""

    WORST = "worst"
    BALANCED = "balanced"


class Plausibility(enum.Enum):
    """The reading of unknown values: PLAUSIBLE, by the rules in policy.py; ZEROS, as zeros."""

    PLAUSIBLE = "plausible"
    ZEROS = "zeros"


@dataclass(frozen=True, slots=True)
class Assumed:
    """The assumptions of a run.

    Attributes:
        found_frac: the fraction of the elements that nonzero, masked_select, unique or a boolean
            index finds.
        experts: how routers distribute tokens to experts.
        values: how unknown values are read.
    """

    found_frac: float = 1.0
    experts: Experts = Experts.WORST
    values: Plausibility = Plausibility.PLAUSIBLE

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Assumed:
        """Parses assumptions such as "nonzero=0.25"; the default is the worst case.

        Raises:
            SpecError: an unknown name or value, or a name that is given twice.
        """
        settings: dict[str, str] = {}
        for text in texts:
            name, equals, value = text.partition("=")
            if name not in {"nonzero", "experts", "values"} or not equals:
                raise SpecError(
                    f"--assume {text!r} is not known; expected nonzero=all, half, none or a "
                    "fraction, experts=worst or balanced, or values=plausible or zeros"
                )
            if name in settings:
                raise SpecError(f"--assume names {name!r} twice; give it once")
            settings[name] = value
        experts = settings.get("experts", Experts.WORST.value)
        if experts not in {Expert.value for Expert in Experts}:
            raise SpecError(f"--assume experts={experts!r}; expected worst or balanced")
        values = settings.get("values", Plausibility.PLAUSIBLE.value)
        if values not in {plausibility.value for plausibility in Plausibility}:
            raise SpecError(f"--assume values={values!r}; expected plausible or zeros")
        fraction = _fraction(settings.get("nonzero", "all"))
        return cls(fraction, Experts(experts), Plausibility(values))

    def text(self) -> str:
        """The text for `parse`, its parts separated by commas."""
        experts, values = self.experts.value, self.values.value
        return f"nonzero={self.found_frac!r},experts={experts},values={values}"

    def found(self, most: int) -> int:
        """The number of elements found among `most`; the fraction is rounded up."""
        return -int(-most * self.found_frac // 1)

    @property
    def found_in_words(self) -> str:
        """The text of the assumption in the report."""
        return "worst case" if self.found_frac == 1 else f"{self.found_frac:g} of the worst case"


WORST_CASE = Assumed()


def _fraction(text: str) -> float:
    try:
        fraction = _FRACTIONS[text] if text in _FRACTIONS else float(text)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction <= 1:
        raise SpecError(
            f"--assume nonzero={text!r} is not a share of elements; expected all, half, none or a "
            "fraction from 0 to 1"
        )
    return fraction
