"""The colours of blocks on the page: by category, by module or by call site. Each way has at most
as many groups as there are distinguishable colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullage.log.model import Category
from ullage.verbs.views.palette import CATEGORY_LOOKS

_COLORS = tuple(
    look.color
    for category, look in CATEGORY_LOOKS.items()
    if category not in (Category.UNATTRIBUTED, Category.COMMUNICATION)
)
_OTHER_COLOR = CATEGORY_LOOKS[Category.UNATTRIBUTED].color


def category_groups() -> list[dict[str, str]]:
    """The groups of all categories, in the categories' order."""
    return [
        {"label": CATEGORY_LOOKS[category].label, "color": CATEGORY_LOOKS[category].color}
        for category in Category
    ]


def name_groups(
    names: Sequence[str], of_block: NDArray[Any], bytes_of_block: NDArray[Any], other: str
) -> dict[str, Any]:
    """Makes groups of the names with the most bytes, and one group for all others.

    Args:
        names: the names of modules or sites.
        of_block: (num_blocks,) the number of each block's name.
        bytes_of_block: (num_blocks,) the bytes to rank by.
        other: the name of the last group.
    """
    sums = np.zeros(len(names), dtype=np.float64)
    np.add.at(sums, of_block, bytes_of_block)
    top = [int(number) for number in np.argsort(-sums, kind="stable")[: len(_COLORS)]]
    top = [number for number in top if sums[number] > 0]
    group_of = {number: group for group, number in enumerate(top)}
    groups = [
        {"label": names[number] or "(none)", "color": color}
        for number, color in zip(top, _COLORS, strict=False)
    ]
    return {
        "groups": [*groups, {"label": other, "color": _OTHER_COLOR}],
        "group_of_name": [group_of.get(number, len(top)) for number in range(len(names))],
    }
