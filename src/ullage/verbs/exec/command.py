"""`ullage exec`: runs a program under a plan, a memory cap or a guard, on this machine's GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ullage.verbs.command_line.command import command
from ullage.verbs.command_line.streams import say
from ullage.verbs.exec.options import ExecOptions

_NOT_APPLIED = 3


@command()
def exec_command(options: ExecOptions) -> int:
    """Run a program under a plan, a memory cap or a guard, on the GPU of this machine.

    \b
    ullage exec --plan plan.json -- train.py --batch-size 16
    ullage exec --guard ladder.json --resume "--resume last.pt" -- train.py
    ullage exec --guard half.json,all.json -- train.py
    ullage exec --cap 20GiB -- train.py --batch-size 16

    It exits as the program does, with --guard as its last start; with 3 where a plan was not
    applied, or not to the end. A line on stderr says what is done, or why nothing is.
    """
    from ullage.act.techniques.applying.outcome import NEVER
    from ullage.verbs.exec.function import execute

    code, outcome = execute.act(replace(options, say=partial(say, is_aside=True)))
    if outcome is None or outcome.is_applied:
        return code
    more = "" if outcome.is_refused else f"; {NEVER}"
    say(f"ullage: {outcome.failure}{more}", is_aside=True)
    return code if code and not outcome.is_refused else _NOT_APPLIED
