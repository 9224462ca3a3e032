"""The signals that end a process: who handles them, and when.

with handling(child.forward):       # Ctrl-C, SIGTERM and SIGHUP go to the child
    ...
with delayed_signals():                   # they wait until this is done
    shutil.rmtree(directory)
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def delayed_signals() -> Iterator[None]:
    """Delays signals until the context ends."""
    came: list[int] = []
    with handling(lambda number, _frame: came.append(number)):
        yield
    for number in came:
        signal.raise_signal(number)


@contextmanager
def handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Signals that end a process go to the handler; only a main thread can do that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, handler)
        for number in ENDING
        # What is ignored already, as under nohup, stays so, in the child as well.
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def is_in_foreground() -> bool:
    """True if Ctrl-C at the terminal reaches this process's whole group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
