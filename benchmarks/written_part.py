"""The part of a page that a script writes, between two comments that say so."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["fill_part"]


def fill_part(page: str, begin: str, end: str, lines: Iterable[str]) -> str:
    """The page with these lines between its comments `begin` and `end`."""
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return before + begin + "".join(f"{line}\n" for line in lines) + end + after
