"""Ends a process that replays a plan instead of training: it writes the result and exits, whatever
the program still had to do.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from ullage.act.techniques.plan import Plan
from ullage.act.techniques.replaying.outcome import Replayed, error_text, write_replayed
from ullage.ground.protocol.variables import PHANTOM

LIMIT_S, PATIENCE_S = 60, 300
"""Limits of a replay: seconds of processor time, and seconds in all."""


def replay_and_end(
    plan: Plan, directory: Path, of: tuple[Any, ...], step_aside: Callable[[], None] | None
) -> NoReturn:
    """Replays, and ends the process.

    Args:
        plan: the plan to replay.
        directory: where the result is written.
        of: the model, its optimizers, the module that the program calls, and its arguments.
        step_aside: ends the recording of this process.
    """
    # This result remains if something ends the process before the replay does.
    names = [action.technique for action in plan.actions]
    early = f"it took more than {LIMIT_S} s of processor time, or ended its process"
    write_replayed(directory, Replayed(not_done=dict.fromkeys(names, early)))
    for number, timer, limit_s in (
        (signal.SIGPROF, signal.ITIMER_PROF, LIMIT_S),
        (signal.SIGALRM, signal.ITIMER_REAL, PATIENCE_S),
    ):
        signal.signal(number, signal.SIG_DFL)
        signal.setitimer(timer, limit_s)
    # Techniques compare real numbers if there is no phantom.
    os.environ.pop(PHANTOM, None)
    try:
        if step_aside is not None:
            step_aside()
        from ullage.act.techniques.replaying.replay import replay

        replayed = replay(plan, *of)
    except BaseException as error:  # a program's code may raise anything
        replayed = Replayed(not_done=dict.fromkeys(names, error_text(error)))
    write_replayed(directory, replayed)
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
    leave = getattr(os._exit, "__wrapped__", os._exit)  # the unwrapped exit, without our hooks
    leave(0)
    raise SystemExit
