"""The exit codes of verbs, and what they print beside their answers."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType

import click

ANSWER_IS_NO = 1
WRONG_USE = 2
CRASHED = 3
INTERRUPTED = 130
HANGING = "the end of an executor"  # the name of a thread that waits for it


def say(text: str, *, is_aside: bool = False) -> None:
    """Prints lines, with what is not for display in them escaped; aside: to stderr."""
    from ullage.ground.printable import printable_lines

    click.echo(printable_lines(text), err=is_aside)


def drop_stdout() -> None:
    """Discards what is still to be printed, without another error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def refuse_reload() -> None:
    """SIGHUP asks a server to reload: it is answered in words, and ends nothing."""
    text = (
        b"ullage: SIGHUP: this server does not read its configuration again while it runs; end it "
        b"with SIGTERM, which lets requests finish, and start it anew\n"
    )

    def refuse(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(2, text)  # in Python stderr may be written to right now

    signal.signal(signal.SIGHUP, refuse)
