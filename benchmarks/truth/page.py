"""docs/results/truth.md: each source in a line, and the cases that a reader must know of."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Final

from benchmarks.truth.case import FAILED, NOT_RUN, Case, Difference, Table

HEAD: Final = """# What real GPUs said, and what ullage says

{made_by}

{total}

Everything of real GPUs that the repository has, a case a row in [truth.csv](truth.csv): what was
measured, ours (low, likely, high), the same of the last commit, and two columns for verdicts.

- **A wrong "fits"**: a GPU with the room that we say is enough would not have been. Of bytes that
  a device must have (*reserved*, *device*) the upper bound lies below the truth; of room for a
  *cache* the lower bound lies above it; of a *verdict* we say "fits" of what ran out of memory.
- **A false alarm**: the lower bound lies above the truth, of a cache the upper bound below it; or
  what ran is said not to fit.
- Where nothing stands in these columns, no verdict follows from the figure: allocated bytes,
  times, readings of devices with unknown processes, estimates of a recipe that is not stated in
  full.
- *error* is that of the likely figure, *inside* how many of the intervals hold the truth. *now*
  counts the cases that were run for this page, *recorded* those whose result is an earlier day's,
  *not run* those that have none. Figures are bytes, or seconds (s).

{summary}

{parts}
"""
NOT_HERE: Final = """## What is not here

- Figures that ullage's own rules were read off: [graphs'
  memory](accuracy.md#device-memory-of-cuda-graphs), the [addresses](#order-of-addresses) that
  drivers gave, and the [host's time](serve.md#what-the-host-takes) of a server.
"""
COLUMNS: Final = (
    "source", "quantity", "cases", "now", "recorded", "not run", "median error", "worst", "inside",
    'wrong "fits"', "false alarms",
)  # fmt: skip


def render(cases: Sequence[Case], before: Table, difference: Difference, made_by: str) -> str:
    """The page."""
    parts = [
        _listed('Wrong "fits"', [_line(case) for case in cases if case.is_wrong_fit]),
        _listed("False alarms", [_line(case) for case in cases if case.is_false_alarm]),
        _listed("Since the last commit", _since(difference, before)),
        _listed("Not run", _without(cases)),
        NOT_HERE.rstrip(),
    ]
    return HEAD.format(
        made_by=made_by,
        total=total(cases),
        summary=summary(cases, before),
        parts="\n\n".join(parts),
    )


def total(cases: Sequence[Case]) -> str:
    """All verdicts in a sentence."""
    judged = sum(case.is_wrong_fit is not None or bool(case.is_false_alarm) for case in cases)
    wrong = sum(bool(case.is_wrong_fit) for case in cases)
    alarms = sum(bool(case.is_false_alarm) for case in cases)
    return (
        f"**{sum(case.has_figures for case in cases)} of {len(cases)} figures are compared. A "
        f'verdict follows from {judged}: {wrong} wrong "fits", {alarms} false alarms.**'
    )


def summary(cases: Sequence[Case], before: Table) -> str:
    """The table by source and quantity; where the last commit's median is another, beside it."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|---|" + "--:|" * (len(COLUMNS) - 2)]
    places = {source: place for place, source in enumerate(dict.fromkeys(map(_source, cases)))}
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in sorted(cases, key=lambda case: places[_source(case)]):
        groups.setdefault((_source(case), case.key.quantity), []).append(case)
    for (source, quantity), group in groups.items():
        earlier = [before[case.key] for case in group if case.key in before]
        was = _median(earlier)
        median = _median(group)
        changed = f" (was {was})" if was not in ("", median) else ""
        kinds = [case.run.split()[0] for case in group]
        errors = [abs(case.error) for case in group if case.error is not None]
        cells = (
            source, quantity, str(len(group)), str(kinds.count("now")),
            str(kinds.count("recorded")), str(kinds.count("not") + kinds.count(FAILED)),
            median + changed, f"{max(errors):.1%}" if errors else "",
            _share(case.is_inside for case in group),
            _count(case.is_wrong_fit for case in group),
            _count(case.is_false_alarm for case in group),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _source(case: Case) -> str:
    return case.key.source


def _median(cases: Sequence[Case]) -> str:
    errors = [abs(case.error) for case in cases if case.error is not None]
    return f"{statistics.median(errors):.1%}" if errors else ""


def _share(flags: Iterable[bool | None]) -> str:
    known = [flag for flag in flags if flag is not None]
    return f"{sum(known)} of {len(known)}" if known else ""


def _count(flags: Iterable[bool | None]) -> str:
    known = [flag for flag in flags if flag is not None]
    return str(sum(known)) if known else ""


def _line(case: Case) -> str:
    what = f"{case.key.source}, {case.key.name}, {case.key.quantity}"
    note = f" ({case.note})" if case.note else ""
    return f"- {what}: {case.says()}, {case.run}{note}."


def _since(difference: Difference, before: Table) -> list[str]:
    if not before:
        return ["The last commit has no such table."]
    return [f"- {line}." for line in difference.lines()]


def _without(cases: Sequence[Case]) -> list[str]:
    """Reasons, and how many cases of which source have each."""
    counts: dict[tuple[str, str], int] = {}
    for case in cases:
        if case.run in (NOT_RUN, FAILED):
            key = (case.key.source, f"{case.run}: {case.note}")
            counts[key] = counts.get(key, 0) + 1
    return [f"- {source}, {count}: {why}." for (source, why), count in counts.items()]


def _listed(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"## {title}", "", *(lines or ["None."])])
