"""How many of equal blocks get which treatment: a small program in whole numbers, whose answer is a
bound for all choices, and mostly the best choice itself.

Blocks that take equally long under each treatment are a group. Of each stretch that holds all or
none of every group, the limit is put on the counts alone; the other stretches are left out. So no
choice takes less time than the best counts. Where equal layers follow each other, as in a
transformer, what is left out seldom binds: the counts are laid out with those that keep least
first, and if that fits, nothing is faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ullage.plan.solver.problem import Problem
    from ullage.trace.model import Int64Array

_DIGITS = 9
_SECONDS = 2.0
_THREADS = 2
_MIB, _MS = 1 << 20, 1e3


def count(problem: Problem, limit_bytes: int, gap: float) -> tuple[Int64Array, float] | None:
    """A choice made of the best counts, which may not fit, and the bound in seconds; None where
    most blocks are like no other, no counts keep to the limit, or HiGHS has found none.
    """
    groups = find_groups(problem)
    if 2 * len(groups) > problem.num_blocks:
        return None
    kinds = problem.num_treatments
    solver = start_solver(gap / 2, _SECONDS)
    for group in groups:
        for cost in problem.extra_s[group[0]] * _MS:
            solver.addCol(float(cost), 0.0, float(len(group)), 0, [], [])
    num = len(groups) * kinds
    solver.changeColsIntegrality(num, np.arange(num, dtype=np.int32), _integers(num))
    for number, group in enumerate(groups):
        own = np.arange(number * kinds, (number + 1) * kinds, dtype=np.int32)
        solver.addRow(float(len(group)), float(len(group)), kinds, own, np.ones(kinds))
    for held, room in _rows(problem, groups, limit_bytes):
        kept = [problem.kept_bytes[group].min(axis=0) / _MIB for group in groups]
        values = np.concatenate([row * is_held for row, is_held in zip(kept, held, strict=True)])
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


def _rows(
    problem: Problem, groups: list[list[int]], limit_bytes: int
) -> list[tuple[list[float], int]]:
    """Of each stretch that holds groups whole or not at all: which, and what there is for them."""
    rows = []
    for stretch, held in enumerate(problem.held):
        shares = [float(held[group].mean()) for group in groups]
        if all(share in (0.0, 1.0) for share in shares) and any(shares):
            rows.append((shares, limit_bytes - int(problem.rest_bytes[stretch].min())))
    return rows


def _lay_out(problem: Problem, groups: list[list[int]], counts: Int64Array) -> Int64Array:
    choice = np.zeros(problem.num_blocks, dtype=np.int64)
    for group, row in zip(groups, counts, strict=True):
        kept = problem.kept_bytes[group[0]]
        order = sorted(range(len(row)), key=lambda one: int(kept[one]))
        choice[group] = [one for one in order for _ in range(int(row[one]))]
    return choice


def start_solver(gap: float, seconds: float) -> Any:  # noqa: ANN401 - has no types
    """HiGHS, with nothing loaded. All have as many threads: its pool of them is one."""
    import highspy

    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)  # noqa: FBT003 - its own interface
    solver.setOptionValue("mip_rel_gap", gap)
    solver.setOptionValue("time_limit", seconds)
    solver.setOptionValue("threads", _THREADS)
    return solver


def _integers(num: int) -> Any:  # noqa: ANN401 - has no types
    import highspy

    return np.full(num, highspy.HighsVarType.kInteger)
