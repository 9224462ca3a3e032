"""`ullage exec`: runs a program under a plan, a memory cap or a guard, on this machine's GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ullage.cli.main import say
from ullage.cli.options import flags
from ullage.cli.options.run import check_guard
from ullage.errors import SpecError

if TYPE_CHECKING:
    from ullage.techniques.applying.outcome import Outcome

_NOT_APPLIED = 3


@click.command("exec", context_settings={"allow_interspersed_args": False})
@flags.program
@click.option(
    "--plan", type=click.Path(path_type=Path), metavar="FILE", help="Plan from `ullage fit`."
)
@flags.guard
@flags.resume
@click.option(
    "--cap",
    metavar="SIZE",
    help="Memory of a GPU that each process may take, its context included.",
)
@flags.python
def exec_command(
    program: tuple[str, ...], *,
    plan: Path | None, guard: tuple[str, ...] | None, resume: tuple[str, ...], cap: str | None,
    python: str | None,
) -> int:  # fmt: skip
    """Run a program under a plan, a memory cap or a guard, on the GPU of this machine.

    \b
    ullage exec --plan plan.json -- train.py --batch-size 16
    ullage exec --guard ladder.json --resume "--resume last.pt" -- train.py
    ullage exec --guard half.json,all.json -- train.py
    ullage exec --cap 20GiB -- train.py --batch-size 16

    It exits as the program does, with --guard as its last start; with 3 where a plan was not
    applied, or not to the end. A line on stderr says what is done, or why nothing is.
    """
    from ullage.api.exec import execute, execute_capped, execute_guarded
    from ullage.techniques.applying.cap import RESERVE_BYTES
    from ullage.techniques.plan import Plan
    from ullage.units import format_bytes, parse_bytes

    cap_bytes = None if cap is None else parse_bytes(cap)
    if cap_bytes is not None and cap_bytes <= RESERVE_BYTES:
        raise SpecError(
            f"--cap {cap} leaves nothing: {format_bytes(RESERVE_BYTES)} of it are kept free, since "
            "the context grows"
        )

    def aside(text: str) -> None:
        say(text, is_aside=True)

    check_guard(guard, plan, resume)
    if guard is not None:
        code, outcome = execute_guarded(
            program, guard, python, resume=resume, cap_bytes=cap_bytes, say=aside
        )
        return _judge(code, outcome)
    if plan is None:
        if cap_bytes is None:
            raise SpecError("no plan was given; for example: ullage exec --plan plan.json -- ...")
        return execute_capped(program, cap_bytes, python, aside)
    loaded = Plan.load(plan)
    if not loaded.actions:
        aside(f"ullage: plan: {loaded.summary}")
    return _judge(*execute(program, loaded, python, cap_bytes=cap_bytes, say=aside))


def _judge(code: int, outcome: Outcome | None) -> int:
    """The exit code of a program, or that of a plan that was not applied, which is said."""
    from ullage.techniques.applying.outcome import NEVER

    if outcome is None or outcome.is_applied:
        return code
    more = "" if outcome.is_refused else f"; {NEVER}"
    say(f"ullage: {outcome.failure}{more}", is_aside=True)
    return code if code and not outcome.is_refused else _NOT_APPLIED
