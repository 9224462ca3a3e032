"""Runs a program under a plan on the GPU of this machine: nothing is recorded, and nothing
of the phantom is in it.

    code = execute(["train.py"], Plan.load("plan.json"))
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ullage.errors import PlanError
from ullage.phantom.launch import SITE_DIR, plan_variables, run_directory, start
from ullage.phantom.program import put_before, resolve_program
from ullage.phantom.torch_build import find_version
from ullage.techniques.applying.outcome import Outcome, read_outcome
from ullage.techniques.made_for import public_version
from ullage.techniques.plan import Plan


def execute(program: Sequence[str], plan: Plan, python: str | None = None) -> tuple[int, Outcome]:
    """Runs a program under a plan.

    Args:
        program: its words, as for `ullage.run`.
        plan: what is applied to the model that it trains.
        python: the interpreter of another environment.

    Returns:
        Its exit code (128 + the signal that ended it), and what became of the plan.

    Raises:
        SpecError: there is no such program.
        EnvironmentProblem: there is no torch.
        PlanError: that torch is another one than the plan was made for.
    """
    resolved = resolve_program(program, python)
    version, planned = find_version(resolved.python), plan.made_for.torch
    if public_version(version) != public_version(planned):
        raise PlanError(
            f"the plan was made for torch {planned}, and {resolved.python} has {version}; make one "
            "for this torch with `ullage fit`"
        )
    with run_directory() as directory:
        variables = plan_variables(directory, plan)
        environment = os.environ | {name: value for name, value in variables.items() if value}
        put_before(environment, "PYTHONPATH", str(SITE_DIR))
        with start(resolved, environment) as child:
            ended = child.wait()
        return ended.exit_code, read_outcome(directory, plan)
