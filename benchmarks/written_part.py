"""The part of a page that a program writes, between two comments that name it and its writer.

<!-- rules: written by python -m benchmarks.rules -->
...
<!-- end rules -->
"""

from __future__ import annotations

import re

__all__ = ["fill_part", "read_part"]


def read_part(page: str, name: str) -> str:
    """What stands between the comments of a part; "" where the page has no such part."""
    match = _find(page, name)
    return match[2].strip("\n") if match else ""


def fill_part(page: str, name: str, text: str) -> str:
    """The page with this text between the comments of a part.

    Raises:
        ValueError: the page has no such comments.
    """
    match = _find(page, name)
    if match is None:
        raise ValueError(f"no page has <!-- {name}: written by ... --> and <!-- end {name} -->")
    return f"{page[: match.end(1)]}\n{text}\n{page[match.start(3) :]}"


def _find(page: str, name: str) -> re.Match[str] | None:
    begin = rf"(<!-- {re.escape(name)}: written by [^\n]*? -->)"
    return re.search(rf"{begin}(.*?)(<!-- end {re.escape(name)} -->)", page, re.DOTALL)
