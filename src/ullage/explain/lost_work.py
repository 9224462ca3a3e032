"""Work that was lost: a request of memory failed, the program caught the error, and went on without
what it was for.

A failure is made good where the same work was done later, with as much or with less. The same work
is, in a forward, backward or optimizer, the call of the same root module, whose size is that of its
inputs; anywhere else a request within the statement that caught the error, whose size is its bytes.
A smaller one is the same work where the program reduced it: by a size that it had not done before,
or on the way back of a search. Else it may be the next batch, and the failure counts.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, compress, pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from ullage.explain.moments.course import Phase, read_course
from ullage.explain.moments.evaluations import Forward, find_rounds_of_marks
from ullage.log.model import MarkKind, OutOfMemory, Record

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
    course = read_course(record)
    # The position is that after the failure.
    positions = np.array([oom.position for oom in record.ooms])
    rows = course.region_at(positions - record.first_position - 1)
    forwards = [mark.position for mark in record.marks if mark.kind is MarkKind.FORWARD_BEGIN]
    # A backward or an optimizer of tensors that no module has made is a statement like any other.
    is_in_call = np.isin(course.phase[rows], _IN_CALLS) & (len(forwards) > 0)
    is_in_call &= positions > min(forwards, default=0)
    elsewhere = {row: record.ooms[row] for row in np.flatnonzero(~is_in_call).tolist()}
    lost = _lost_calls(record, compress(record.ooms, is_in_call.tolist()))
    for numbers, sizes in record.attempts:
        failures = map(elsewhere.get, numbers)
        attempts = [Attempt(abs(size), size < 0, next(failures, None) if size < 0 else None)
                    for size in sizes]  # fmt: skip
        lost += not_made_good(attempts, varies=False)
    times = "once" if len(lost) == 1 else f"{len(lost)} times"
    last = max(lost, key=lambda oom: oom.position, default=None)
    return last and replace(last, ended=f"what this was for, {times}")


def _lost_calls(record: Record, ooms: Iterable[OutOfMemory]) -> list[OutOfMemory]:
    """The work lost to failures in calls, each of which belongs to the last call that had begun.
    Modules of one name are one: a search makes a model for each try.
    """
    names = dict(enumerate(record.modules))
    has_optimizer = any(mark.kind is MarkKind.OPTIMIZER_BEGIN for mark in record.marks)
    calls = [
        (call, round_.forwards[number + 1 :], round_.end if has_optimizer else None)
        for round_ in find_rounds_of_marks(record.marks)
        for number, call in enumerate(round_.forwards)
    ]
    places = [call.begin for call, *_ in calls]
    failures = {bisect_left(places, oom.position) - 1: oom for oom in ooms}
    attempts = defaultdict[str, list[Attempt]](list)
    for number, (call, others, step_end) in enumerate(calls):
        oom, size = failures.get(number), _size_of(call)
        # The model has caught it itself, or the guard has done the step again, or done it in parts.
        end = max((step_end or 0) * (not others), call.end * (not call.has_failed))
        parts = (_size_of(each) for each in others if each.module == call.module)
        if oom is not None and (oom.position <= end or (step_end and size in accumulate(parts))):
            oom = None
        name = _COPY.sub("", names.get(call.module or 0, "")) or str(call.module)
        attempts[name].append(Attempt(size, oom is not None, oom))
    return [oom for tries in attempts.values() for oom in not_made_good(tries, varies=True)]


def _size_of(call: Forward) -> int:
    return sum(map(prod, call.inputs or ()))


def not_made_good(attempts: Sequence[Attempt], *, varies: bool) -> list[OutOfMemory]:
    """The failures among the attempts at some work that no later one makes good.

    varies: whether different sizes before mean that the next size is that of the next batch.
    """
    done: list[int] = [0]  # the first size that was done after each attempt, last first
    for attempt in reversed(attempts):
        done.append(done[-1] if attempt.has_failed else attempt.size or 1)
    before: dict[int, int] = {}  # how often each size was done
    answers: dict[int, int] = {}  # by which size failures of a size were made good
    largest, lost = 0, []
    for number, (size, has_failed, oom) in enumerate(attempts):
        if not has_failed:
            before[size] = before.get(size, 0) + 1
            continue
        after, following = done[len(attempts) - number - 1], attempts[number + 1 : number + 2]
        is_tried_again = any(each.has_failed and each.size >= size for each in following)
        is_known = after in before or size in answers or (varies and len(before) > 1)
        if after and (after >= size or after in answers.values()):
            pass
        elif after and not is_known and not is_tried_again:
            answers[size] = after
        elif oom is not None and not (_rises(before, size, is_even=not after and size >= largest)):
            lost.append(oom)
        largest = max(largest, size)
    return lost


def _rises(before: dict[int, int], size: int, *, is_even: bool) -> bool:
    """True if sizes rise from try to try, as in a search for the largest.

    is_even: by equal steps or factors, as where nothing follows and nothing larger has failed.
    """
    pairs = list(pairwise([*before, size]))
    if len(pairs) < 2 or max(before.values()) > 1 or any(a >= b for a, b in pairs):
        return False
    return not is_even or 1 in (
        len({b - a for a, b in pairs}),
        len({b / max(a, 1) for a, b in pairs}),
    )
