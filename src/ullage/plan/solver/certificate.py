"""The fastest treatment of all blocks with a proof: a mixed-integer program, solved by HiGHS.

A variable for each block and treatment, of which each block has one; a level for each stretch. A
level differs from the one before by the blocks that came to be held or ceased to be, which keeps
the matrix sparse.

Source: Huangfu and Hall, 2018, doi:10.1007/s12532-017-0130-5; https://highs.dev.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from ullage.plan.solver.counts import start_solver

if TYPE_CHECKING:
    from ullage.plan.solver.problem import Problem
    from ullage.plan.solver.solve import Solution

_SECONDS = 5.0
_MIB = 1 << 20
_MS = 1e3


@cache
def is_available() -> bool:
    """Whether HiGHS is installed."""
    return find_spec("highspy") is not None


def certify(
    problem: Problem, limit_bytes: int, gap: float, known: Solution | None
) -> Solution | None:
    """The best choice within `gap`, with its bound; None where HiGHS proves that there is none.

    Args:
        known: a choice that fits, to begin with.
    """
    from ullage.plan.solver.solve import Solution

    num, kinds = problem.kept_bytes.shape
    solver = _load(problem, limit_bytes, gap)
    if known is not None:
        _begin_with(solver, problem, known)
    solver.run()
    info = solver.getInfo()
    values = np.array(solver.getSolution().col_value)
    if info.primal_solution_status != 2:  # no feasible point
        return known
    choice = values[: num * kinds].reshape(num, kinds).argmax(axis=1)
    time_s = problem.time_s(choice)
    if problem.peak_bytes(choice) > limit_bytes or (known and known.time_s < time_s):
        if known is None:
            return None
        choice, time_s = known.choice, known.time_s
    bound_s = max(float(info.mip_dual_bound) / _MS, known.bound_s if known else 0.0)
    return Solution(choice, time_s, min(bound_s, time_s), problem.peak_bytes(choice))


def _load(problem: Problem, limit_bytes: int, gap: float) -> Any:  # noqa: ANN401 - has no types
    import highspy

    num, kinds = problem.kept_bytes.shape
    solver = start_solver(gap, _SECONDS)
    count = num * kinds
    for cost in problem.extra_s.ravel() * _MS:
        solver.addCol(cost, 0.0, 1.0, 0, [], [])
    solver.changeColsIntegrality(
        count, np.arange(count, dtype=np.int32),
        np.full(count, highspy.HighsVarType.kInteger),
    )  # fmt: skip
    for block in range(num):
        own = np.arange(block * kinds, (block + 1) * kinds, dtype=np.int32)
        solver.addRow(1.0, 1.0, kinds, own, np.ones(kinds))
    _add_levels(solver, problem, limit_bytes)
    return solver


def _add_levels(solver: Any, problem: Problem, limit_bytes: int) -> None:  # noqa: ANN401
    """A column for what is held in each stretch, the row that defines it, and the row of its
    limit; in MiB.
    """
    kept = problem.kept_bytes / _MIB
    num, kinds = kept.shape
    before = np.zeros(num, dtype=np.int8)
    for stretch, held in enumerate(problem.held.astype(np.int8)):
        level = num * kinds + stretch
        solver.addCol(0.0, 0.0, np.inf, 0, [], [])
        columns, values = [level], [1.0]
        if stretch:
            columns.append(level - 1)
            values.append(-1.0)
        for block in np.flatnonzero(held != before).tolist():
            columns += range(block * kinds, (block + 1) * kinds)
            values += (-(held[block] - before[block]) * kept[block]).tolist()
        solver.addRow(0.0, 0.0, len(columns), np.array(columns, dtype=np.int32), np.array(values))
        before = held
        own, rest = int(problem.own[stretch]), problem.rest_bytes[stretch] / _MIB
        columns, values, limit = [level], [1.0], limit_bytes / _MIB
        if own >= 0:
            columns += range(own * kinds, (own + 1) * kinds)
            values += rest.tolist()
        else:
            limit -= float(rest[0])
        solver.addRow(
            -np.inf, limit, len(columns), np.array(columns, dtype=np.int32), np.array(values)
        )


def _begin_with(solver: Any, problem: Problem, known: Solution) -> None:  # noqa: ANN401
    import highspy

    num, kinds = problem.kept_bytes.shape
    chosen = np.zeros((num, kinds))
    chosen[np.arange(num), known.choice] = 1.0
    held = problem.held @ (problem.kept_bytes[np.arange(num), known.choice] / _MIB)
    solution = highspy.HighsSolution()
    solution.col_value = np.concatenate((chosen.ravel(), held)).tolist()
    solver.setSolution(solution)
