"""A table of the memory of modules at a moment, with one row for equal layers."""

from __future__ import annotations

from collections.abc import Sequence

from ullage.answers.block_kinds import LEFT, RIGHT, Rows, Table
from ullage.explain.owners.modules import ModuleShare, merge_numbered
from ullage.ground.units import format_bytes
from ullage.verbs.views.module_names import name_module

_MAX_ROWS = 8


def module_table(shares: Sequence[ModuleShare]) -> Table:
    """Makes the table: the largest modules first, then the sum of the rest."""
    merged = merge_numbered(shares)
    rows: Rows = []
    for share in merged[:_MAX_ROWS]:
        count = f"x {share.num_modules}" if share.num_modules > 1 else ""
        rows.append([name_module(share.path), format_bytes(share.size_bytes, 2), count])
    rest = merged[_MAX_ROWS:]
    if rest:
        size = sum(share.size_bytes for share in rest)
        rows.append([f"({len(rest)} more)", format_bytes(size, 2)])
    return Table((LEFT, RIGHT, RIGHT), rows)
