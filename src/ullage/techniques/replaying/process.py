"""The end of a process that replays a plan in place of training: it says what it has found, and
ends, whatever the program had still to do.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from ullage.protocol.variables import PHANTOM
from ullage.techniques.plan import Plan
from ullage.techniques.replaying.outcome import Replayed, write_replayed

LIMIT_S, PATIENCE_S = 60, 300
"""A replay that takes more processor time, or waits longer for it, is ended."""


def replay_and_end(
    plan: Plan, directory: Path, of: tuple[Any, ...], step_aside: Callable[[], None] | None
) -> NoReturn:
    """Replays, and ends the process.

    Args:
        plan: to be replayed.
        directory: where the result goes.
        of: the model, its optimizers, the module that the program calls, and the arguments.
        step_aside: has what watches this process let it alone.
    """
    # Whatever ends this process before the replay does is told by these lines.
    names = [action.technique for action in plan.actions]
    early = f"it took more than {LIMIT_S} s of processor time, or ended its process"
    write_replayed(directory, Replayed(not_done=dict.fromkeys(names, early)))
    for number, timer, limit_s in (
        (signal.SIGPROF, signal.ITIMER_PROF, LIMIT_S),
        (signal.SIGALRM, signal.ITIMER_REAL, PATIENCE_S),
    ):
        signal.signal(number, signal.SIG_DFL)
        signal.setitimer(timer, limit_s)
    # Techniques compare real numbers where they find no phantom.
    os.environ.pop(PHANTOM, None)
    try:
        if step_aside is not None:
            step_aside()
        from ullage.techniques.replaying.replay import replay

        replayed = replay(plan, *of)
    except BaseException as error:  # a program's code may raise anything
        why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
        replayed = Replayed(not_done=dict.fromkeys(names, why))
    write_replayed(directory, replayed)
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
    leave = getattr(os._exit, "__wrapped__", os._exit)  # without what watches a program's end
    leave(0)
    raise SystemExit
