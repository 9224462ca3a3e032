"""How many of equal blocks get which treatment: a relaxation in whole numbers, far smaller than the
whole problem. Its optimum is a dual bound for all choices, and mostly the best choice itself.

Blocks that take equally long under each treatment form a group. The limit is imposed only on the
stretches that hold all or none of every group; the constraints of the other stretches are dropped.
So no choice takes less time than the optimal counts. Where equal layers follow each other, as in a
transformer, the dropped constraints are seldom active: the counts are laid out with the treatments
that keep least first, and if that choice fits, it is optimal.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ullage.log.model import Int64Array
    from ullage.search.solver.problem import Problem

_DIGITS = 9
_SECONDS = 2.0
_THREADS = 2
_MIB, _MS = 1 << 20, 1e3


def solve_counts(problem: Problem, limit_bytes: int, gap: float) -> tuple[Int64Array, float] | None:
    """The choice of the optimal counts, which may not fit, and its dual bound in seconds.

    None where most blocks differ from all others, no counts fit, or HiGHS found none in time.
    """
    groups = find_groups(problem)
    if 2 * len(groups) > problem.num_blocks:
        return None
    kinds = problem.num_treatments
    solver = start_solver(gap / 2, _SECONDS)
    # A column for each group and treatment: how many blocks of the group get it.
    for group in groups:
        for cost in problem.extra_s[group[0]] * _MS:
            solver.addCol(float(cost), 0.0, float(len(group)), 0, [], [])
    num = len(groups) * kinds
    solver.changeColsIntegrality(num, np.arange(num, dtype=np.int32), _integers(num))
    # Each block of a group gets one treatment.
    for number, group in enumerate(groups):
        own = np.arange(number * kinds, (number + 1) * kinds, dtype=np.int32)
        solver.addRow(float(len(group)), float(len(group)), kinds, own, np.ones(kinds))
    # What the groups keep stays below the limit, less the least rest of the stretch.
    kept_mib = [problem.kept_bytes[group].min(axis=0) / _MIB for group in groups]
    for shares, room in _group_stretches(problem, groups, limit_bytes):
        values = np.concatenate([row * share for row, share in zip(kept_mib, shares, strict=True)])
        solver.addRow(-np.inf, room / _MIB, num, np.arange(num, dtype=np.int32), values)
    solver.run()
    info = solver.getInfo()
    if info.primal_solution_status != 2:  # no feasible point
        return None
    counts = np.array(solver.getSolution().col_value).round().astype(int).reshape(-1, kinds)
    return _lay_out(problem, groups, counts), float(info.mip_dual_bound) / _MS


def find_groups(problem: Problem) -> list[list[int]]:
    """Blocks that take equally long under each treatment, as indices."""
    groups: dict[bytes, list[int]] = {}
    for block, row in enumerate(problem.extra_s.round(_DIGITS)):
        groups.setdefault(row.tobytes(), []).append(block)
    return list(groups.values())


def _group_stretches(
    problem: Problem, groups: list[list[int]], limit_bytes: int
) -> list[tuple[list[float], int]]:
    """For each stretch in which every group is wholly live or not at all: the share of each group
    that is live, 0 or 1, and the bytes that are left for the groups.
    """
    rows = []
    for stretch, is_live in enumerate(problem.liveness):
        shares = [float(is_live[group].mean()) for group in groups]
        if all(share in (0.0, 1.0) for share in shares) and any(shares):
            rows.append((shares, limit_bytes - int(problem.rest_bytes[stretch].min())))
    return rows


def _lay_out(problem: Problem, groups: list[list[int]], counts: Int64Array) -> Int64Array:
    """The choice with these counts in which the earlier blocks of a group keep least."""
    choice = np.zeros(problem.num_blocks, dtype=np.int64)
    for group, row in zip(groups, counts, strict=True):
        order = np.argsort(problem.kept_bytes[group[0]], kind="stable").tolist()
        choice[group] = [treatment for treatment in order for _ in range(int(row[treatment]))]
    return choice


def start_solver(gap: float, seconds: float) -> Any:  # noqa: ANN401 - has no types
    """HiGHS with an empty model. The number of threads never varies: HiGHS has one global pool."""
    import highspy

    with _silence():
        solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)  # noqa: FBT003 - its own interface
    solver.setOptionValue("mip_rel_gap", gap)
    solver.setOptionValue("time_limit", seconds)
    solver.setOptionValue("threads", _THREADS)
    return solver


@contextmanager
def _silence() -> Iterator[None]:
    """Keeps C from writing to stdout: HiGHS 1.16 prints its version when it is made, before an
    option can stop it, and a JSON document would begin with that.
    """
    c_library = ctypes.CDLL(None)
    sys.stdout.flush()
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123
        own = os.dup(1)
        os.dup2(nothing.fileno(), 1)
        try:
            yield
        finally:
            c_library.fflush(None)
            os.dup2(own, 1)
            os.close(own)


def _integers(num: int) -> Any:  # noqa: ANN401 - has no types
    import highspy

    return np.full(num, highspy.HighsVarType.kInteger)
