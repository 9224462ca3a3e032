"""Which cases a name on the command line selects.

select(["train/batch=8", "train/batch=16", "eval"], ["train"])      # both of train
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import translate

from ullage.ground.errors import SpecError


def select(names: Sequence[str], selectors: Sequence[str]) -> tuple[str, ...]:
    """The selected names, in order. A selector is a scenario, a case, or a pattern with * or ?.

    Raises:
        SpecError: a selector matches no name.
    """
    patterns = [re.compile(translate(_without_sets(selector))) for selector in selectors]
    for selector, pattern in zip(selectors, patterns, strict=True):
        if not any(_is_meant(name, selector, pattern) for name in names):
            known = list(dict.fromkeys(name.partition("/")[0] for name in names))
            close = get_close_matches(selector, [*known, *names], n=1)
            meant = f"did you mean {close[0]!r}?" if close else f"expected {', '.join(known)}"
            raise SpecError(f"there is no scenario {selector!r}; {meant}")
    return tuple(
        name
        for name in names
        if any(_is_meant(name, *pair) for pair in zip(selectors, patterns, strict=True))
    )


def is_of(name: str, case: str) -> bool:
    """True if a lock entry belongs to the case or scenario of that name."""
    return name == case or name.startswith((f"{case}/", f"{case},"))


def _is_meant(name: str, selector: str, pattern: re.Pattern[str]) -> bool:
    return is_of(name, selector) or pattern.match(name) is not None


def _without_sets(text: str) -> str:
    """A bracket in a name is literal."""
    return text.replace("[", "[[]")
