"""`ullage exec`: runs a program under a plan or a memory cap, or guarded, on the GPU of this
machine.
"""

from __future__ import annotations

from pathlib import Path

import click

from ullage.cli.main import say
from ullage.cli.options import flags
from ullage.errors import SpecError

_NOT_APPLIED = 3


@click.command("exec", context_settings={"allow_interspersed_args": False})
@flags.program
@click.option(
    "--plan", type=click.Path(path_type=Path), metavar="FILE", help="Plan from `ullage fit`."
)
@click.option(
    "--guard",
    "is_guarded",
    is_flag=True,
    help="Run what runs out of memory again under leaner plans: the plan files between --guard "
    "and --, or checkpoints.",
)
@click.option(
    "--cap",
    metavar="SIZE",
    help="Memory of a GPU that each process may take, its context included.",
)
@flags.python
def exec_command(
    program: tuple[str, ...], *,
    plan: Path | None, is_guarded: bool, cap: str | None, python: str | None,
) -> int:  # fmt: skip
    """Run a program under a plan or a memory cap, or guarded, on the GPU of this machine.

    \b
    ullage exec --plan plan.json -- train.py --batch-size 16
    ullage exec --guard -- train.py
    ullage exec --guard half.json all.json -- train.py
    ullage exec --cap 20GiB -- train.py --batch-size 16

    With --plan it exits as the program does; with 3 where the plan was not applied, or not to the
    end. Else it exits as the program does. A line on stderr says what is done, or why nothing is.
    """
    from ullage.api.exec import execute, execute_capped, execute_guarded
    from ullage.techniques.applying.cap import RESERVE_BYTES
    from ullage.techniques.applying.outcome import NEVER
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

    if is_guarded:
        if plan is not None:
            raise SpecError("--plan and --guard are given; expected one: a plan can be a rung")
        plans, words = _split(program)
        return execute_guarded(words, plans, python, cap_bytes=cap_bytes, say=aside)
    if plan is None:
        if cap_bytes is None:
            raise SpecError("no plan was given; for example: ullage exec --plan plan.json -- ...")
        return execute_capped(program, cap_bytes, python, aside)
    loaded = Plan.load(plan)
    if not loaded.actions:
        aside(f"ullage: plan: {loaded.summary}")
    code, outcome = execute(program, loaded, python, cap_bytes=cap_bytes, say=aside)
    if outcome.is_applied:
        return code
    more = "" if outcome.is_refused else f"; {NEVER}"
    aside(f"ullage: {outcome.failure}{more}")
    return code if code and not outcome.is_refused else _NOT_APPLIED


def _split(words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files of plans before "--", and the program after it."""
    if "--" not in words:
        return (), words
    index = words.index("--")
    return words[:index], words[index + 1 :]
