"""The fastest choice with a proof of optimality: a mixed-integer program, solved by HiGHS.

There is a binary variable for each block and treatment, and a continuous level for each stretch.
Each block has one treatment. A level differs from the previous one by the blocks that became live
or ceased to be, which keeps the matrix sparse.

Source: Huangfu and Hall, 2018, doi:10.1007/s12532-017-0130-5; https://highs.dev.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from ullage.search.solver.counts import start_solver
from ullage.search.solver.problem import Failure, Solution

if TYPE_CHECKING:
    from ullage.search.solver.problem import Problem

_SECONDS = 5.0
_FEASIBLE = 2  # HiGHS: the primal solution is feasible
_MIB = 1 << 20
_MS = 1e3


@cache
def is_available() -> bool:
    """True if HiGHS is installed."""
    return find_spec("highspy") is not None


def certify(
    problem: Problem, limit_bytes: int, gap: float, known: Solution | None
) -> Solution | Failure:
    """The best choice within `gap`, with its dual bound, or why there is none.

    Args:
        known: a choice that fits, from which HiGHS starts; None: there is none so far.
    """
    solver = _load(problem, limit_bytes, gap)
    if known is not None:
        _set_start(solver, problem, known)
    solver.run()
    info = solver.getInfo()
    if info.primal_solution_status != _FEASIBLE:
        return known or _failure(solver)
    # Columns are blocks x treatments first, then levels.
    shape = problem.kept_bytes.shape
    values = np.array(solver.getSolution().col_value)
    choice = values[: shape[0] * shape[1]].reshape(shape).argmax(axis=1)
    time_s = problem.time_s(choice)
    # HiGHS works in floats: a choice may exceed the limit by its tolerance.
    if problem.peak_bytes(choice) > limit_bytes or (known and known.time_s < time_s):
        if known is None:
            return Failure.NOT_FOUND
        choice, time_s = known.choice, known.time_s
    bound_s = max(float(info.mip_dual_bound) / _MS, known.bound_s if known else 0.0)
    return Solution(choice, time_s, min(bound_s, time_s), problem.peak_bytes(choice))


def _failure(solver: Any) -> Failure:  # noqa: ANN401 - has no types
    """The failure: HiGHS proved that no choice fits, or stopped before it found one."""
    import highspy

    status = highspy.HighsModelStatus
    # No choice takes negative infinity, so "unbounded or infeasible" is infeasible here.
    is_proved = solver.getModelStatus() in {status.kInfeasible, status.kUnboundedOrInfeasible}
    return Failure.INFEASIBLE if is_proved else Failure.NOT_FOUND


def _load(problem: Problem, limit_bytes: int, gap: float) -> Any:  # noqa: ANN401 - has no types
    import highspy

    num, kinds = problem.kept_bytes.shape
    solver = start_solver(gap, _SECONDS)
    count = num * kinds
    # Binary variables with the time of each treatment as its cost.
    for cost in problem.extra_s.ravel() * _MS:
        solver.addCol(cost, 0.0, 1.0, 0, [], [])
    solver.changeColsIntegrality(
        count, np.arange(count, dtype=np.int32),
        np.full(count, highspy.HighsVarType.kInteger),
    )  # fmt: skip
    # Each block has one treatment.
    for block in range(num):
        own = np.arange(block * kinds, (block + 1) * kinds, dtype=np.int32)
        solver.addRow(1.0, 1.0, kinds, own, np.ones(kinds))
    _add_levels(solver, problem, limit_bytes)
    return solver


def _add_levels(solver: Any, problem: Problem, limit_bytes: int) -> None:  # noqa: ANN401
    kept_mib = problem.kept_bytes / _MIB
    num, kinds = kept_mib.shape
    was_live = np.zeros(num, dtype=np.int8)
    for stretch, is_live in enumerate(problem.liveness.astype(np.int8)):
        level = num * kinds + stretch
        solver.addCol(0.0, 0.0, np.inf, 0, [], [])
        # The level equals the previous one plus what became live less what ceased to be.
        columns, values = [level], [1.0]
        if stretch:
            columns.append(level - 1)
            values.append(-1.0)
        for block in np.flatnonzero(is_live != was_live).tolist():
            columns += range(block * kinds, (block + 1) * kinds)
            values += (-(is_live[block] - was_live[block]) * kept_mib[block]).tolist()
        solver.addRow(0.0, 0.0, len(columns), np.array(columns, dtype=np.int32), np.array(values))
        was_live = is_live
        # The level plus the rest under the stretch's own treatment stays below the limit.
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


def _set_start(solver: Any, problem: Problem, known: Solution) -> None:  # noqa: ANN401
    import highspy

    num, kinds = problem.kept_bytes.shape
    is_chosen = np.zeros((num, kinds))
    is_chosen[np.arange(num), known.choice] = 1.0
    levels = problem.liveness @ (problem.kept_bytes[np.arange(num), known.choice] / _MIB)
    solution = highspy.HighsSolution()
    solution.col_value = np.concatenate((is_chosen.ravel(), levels)).tolist()
    solver.setSolution(solution)
