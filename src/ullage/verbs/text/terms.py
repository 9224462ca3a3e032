"""A table of the parts of an estimated memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ullage.answers import block_kinds as b
from ullage.ground.units import MIB, format_bytes
from ullage.verbs.views.palette import Look

if TYPE_CHECKING:
    from ullage.players.eager.term import Term

_BAR_WIDTH = 20


def terms_table(
    terms: Sequence[Term], look_of: Callable[[Any], Look], scale: int, total: int | None = None
) -> b.Table:
    """The parts, each with a bar; the longest has `scale` bytes. Intervals that one does not see,
    or of less than 1 MiB, are left out.
    """
    rows: b.Rows = []
    for term in terms:
        low, likely, high = map(format_bytes, (term.low_bytes, term.bytes, term.high_bytes))
        is_wide = term.high_bytes - term.low_bytes >= MIB and not low == likely == high
        margin = b.Word(f"{low} to {high}" if is_wide else "", b.Tone.FAINT)
        bar = b.Bar(term.bytes, scale, look_of(term).color, _BAR_WIDTH)
        rows.append([term.name, format_bytes(term.bytes), bar, margin])
    rows += [] if total is None else [["total", format_bytes(total)]]
    return b.Table((b.LEFT, b.RIGHT, b.LEFT, b.LEFT), rows)
