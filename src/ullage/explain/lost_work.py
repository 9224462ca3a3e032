"""Work that was lost: a request of memory failed, the program caught the error, and went on without
what it was for.

A failure is made good where the same work was done later, with as much or with less. What is the
same work? In a forward, backward or optimizer, the call of the same root module, whose size is that
of its inputs; anywhere else a request at the same line, whose size is its bytes. A smaller one is
the same work where the program reduced it: a size that it had not done before, at each failure of
one size the same, or the way back of a search. It may also be the next batch, so whatever does not
look like a reduction counts as lost.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np

from ullage.explain.moments.phases import Phase, find_regions
from ullage.trace.model import MarkKind, OutOfMemory, Record

_IN_CALLS = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER)
_COPY = re.compile(r"#\d+")


class Attempt(NamedTuple):
    """One try of some work: its size, whether it failed, and the failure if it counts here."""

    size: int
    has_failed: bool = False
    oom: OutOfMemory | None = None


def find_lost(record: Record) -> OutOfMemory | None:
    """The last failure that was not made good, and says how often there was one."""
    if not record.ooms:
        return None
    regions = find_regions(record.marks, record.first_position)
    # The position is that after the failure.
    rows = regions.begin.searchsorted([oom.position for oom in record.ooms]) - 1
    is_in_call = np.isin(regions.phase[np.maximum(rows, 0)], _IN_CALLS).tolist()
    in_calls = list(itertools.compress(record.ooms, is_in_call))
    lost = [
        oom for attempts in _calls(record, in_calls) for oom in not_made_good(attempts, varies=True)
    ]
    ooms = {row: oom for row, oom in enumerate(record.ooms) if not is_in_call[row]}
    for numbers, sizes in record.attempts:
        failures = (ooms.get(row) for row in numbers)
        lost += not_made_good(
            [Attempt(abs(size), size < 0, next(failures, None) if size < 0 else None)
             for size in sizes],
            varies=False,
        )  # fmt: skip
    if not lost:
        return None
    times = "once" if len(lost) == 1 else f"{len(lost)} times"
    last = max(lost, key=lambda oom: oom.position)
    return replace(last, ended=f"what this was for, {times}")


def _calls(record: Record, ooms: Sequence[OutOfMemory]) -> Iterator[list[Attempt]]:
    """The calls of each root module, or of several of one name, which a search makes again for each
    try; a failure belongs to the last that had begun.
    """
    marks = record.marks
    begins = [row for row, mark in enumerate(marks) if mark.kind is MarkKind.FORWARD_BEGIN]
    failed: dict[int, OutOfMemory | None] = {}
    for failure in ooms:
        row = bisect_left(begins, failure.position, key=lambda row: marks[row].position) - 1
        if row >= 0:
            failed[begins[row]] = failure
    has_optimizer = any(mark.kind is MarkKind.OPTIMIZER_BEGIN for mark in marks)
    names, calls = dict(enumerate(record.modules)), dict[str, list[Attempt]]()
    for begin, after in itertools.pairwise([*begins, len(marks)]):
        end = next((m for m in marks[begin:after] if m.kind is MarkKind.FORWARD_END), None)
        inputs = () if end is None else end.inputs or ()
        oom = failed.get(begin)
        if oom is not None and end is not None:
            # The model caught it itself, or the guard did the step again.
            is_whole = end.position >= oom.position and not end.has_failed
            if is_whole or (
                has_optimizer
                and any(
                    mark.kind is MarkKind.STEP and mark.position >= oom.position
                    for mark in marks[begin:after]
                )
            ):
                oom = None
        module = marks[begin].module
        name = "" if module is None else _COPY.sub("", names.get(module, str(module)))
        attempts = calls.setdefault(name, [])
        attempts.append(Attempt(sum(map(prod, inputs)), oom is not None, oom))
    return iter(calls.values())


def not_made_good(attempts: Sequence[Attempt], *, varies: bool) -> list[OutOfMemory]:
    """The failures among the attempts at some work that no later one makes good.

    varies: whether different sizes before mean that the next size is that of the next batch.
    """
    done: list[int | None] = [None]  # the first size that was done after each attempt
    for attempt in reversed(attempts):
        done.append(done[-1] if attempt.has_failed else attempt.size)
    before: list[int] = []
    distinct: set[int] = set()
    answers: dict[int, int] = {}  # by which size failures of a size were made good
    failed, lost = 0, []
    for number, (size, has_failed, oom) in enumerate(attempts):
        if not has_failed:
            before.append(size)
            distinct.add(size)
            continue
        after, follower = done[len(attempts) - number - 1], attempts[number + 1 : number + 2]
        if after is not None and (after >= size or after in answers.values()):
            continue
        is_reduced = (
            after is not None
            and after not in distinct
            and size not in answers
            and not (follower and follower[0].has_failed and follower[0].size >= size)
            and not (varies and len(distinct) > 1)
        )
        if is_reduced and after is not None:
            answers[size] = after
        elif len(before) > len(distinct) or not _is_search(
            [*before, size], failed, ends=after is None
        ):
            lost += [oom] if oom is not None else []
        failed = max(failed, size)
    return lost


def _is_search(sizes: Sequence[int], failed: int, *, ends: bool) -> bool:
    """Whether sizes rise from try to try, as in a search for the largest. One that ends with the
    failure takes equal steps or factors, or halves an interval below a size that has failed.
    """
    if len(sizes) < 3 or any(size >= other for size, other in itertools.pairwise(sizes)):
        return False
    pairs = list(itertools.pairwise(sizes))
    is_even = len({other - size for size, other in pairs}) == 1 or (
        len({other / size for size, other in pairs if size}) == 1
    )
    return not ends or is_even or sizes[-1] < failed
