"""Why a scenario needs more memory than before: the likely causes, the most important first.

    find_reasons(comparison, measured, diff)
    ["torch 2.14.0 to 2.15.0: the lock holds for another", "+1.31 GiB: activations at model.py:70"]

Where the snapshot of the locked run is available, `ullage diff` of both runs gives the causes.
Elsewhere they come from the lock alone: changed versions, new findings, and the function that
allocated more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ullage.explain.compare.changes import signed
from ullage.explain.rules.registry import RULES
from ullage.verbs.check.gate.compare import Changed, Comparison

if TYPE_CHECKING:
    from ullage.explain.compare.diff import DiffReport

_MOST = 5


def find_reasons(
    comparison: Comparison, lines: Mapping[str, tuple[int, ...]], diff: DiffReport | None
) -> tuple[str, ...]:
    """The likely causes, in words.

    Args:
        comparison: of the device.
        lines: of each place, in its file as it is now.
        diff: of the run that was locked and this one; None where one of them is not here.
    """
    reasons = [*_other_keys(comparison)]
    if diff is not None:
        reasons += [
            f"{signed(cause.changed_bytes)}: {cause.text}" if cause.changed_bytes else cause.text
            for cause in diff.causes
        ]
    else:
        reasons += _from_lock(comparison, lines)
    return tuple(reasons[:_MOST])


def _other_keys(comparison: Comparison) -> Iterator[str]:
    for name, before, after in comparison.changes.keys:
        yield f"{name}: the lock holds for {before or 'none'}, this is {after or 'none'}"


def _from_lock(comparison: Comparison, lines: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    for code in comparison.changes.findings:
        if code in RULES:
            yield f"{code}, which was not found before: {RULES[code].title}"
    for place in comparison.changes.places:
        yield f"{signed(place.changed_bytes)} allocated at {name_place(place, lines)}"


def name_place(place: Changed, lines: Mapping[str, tuple[int, ...]]) -> str:
    """A place with its lines as they are now: "model.py:70,74 in forward"."""
    numbers = lines.get(place.name, ())
    file, _, function = place.name.partition(" in ")
    line_list = ",".join(map(str, numbers[:3])) + ("..." if len(numbers) > 3 else "")
    return f"{file}:{line_list} in {function}" if numbers else place.name
