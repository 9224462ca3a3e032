"""The command `ullage`: loads the verb alone, and turns errors into messages and codes.

Exit codes: 0 fine, 1 the answer is no, 2 wrong use or unreadable input, 3 the user's program, or
ullage itself, failed, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib import import_module
from types import FrameType

import click

from ullage.ground.errors import BudgetExceeded, UllageError
from ullage.ground.version import __version__
from ullage.verbs.command_line.streams import (
    ANSWER_IS_NO,
    CRASHED,
    HANGING,
    INTERRUPTED,
    WRONG_USE,
    drop_stdout,
    say,
)

_MAX_SIGNALS = 3
# New objects between two searches for cycles: with Python's 700 a verb's imports alone cause some
# hundred, which find nothing.
_NUM_YOUNG = 50_000
# These live on: what each burst of requests left in cycles would wait for millions of new objects.
_LIVE_ON = {"front", "ui", "watch"}
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}

# What people do -> its verbs -> what --help says. The command of a verb is in its folder of verbs/.
# Help must not load what a verb needs.
GROUPS = {
    "Predict": {
        "run": "Run a program on a simulated GPU; report whether it fits.",
        "estimate": "Estimate the memory for training a model from its configuration.",
        "capacity": "Estimate what a GPU holds of a model that is served: users, context, streams.",
        "serve": "Serve traffic with a real engine on a simulated GPU, in virtual time.",
        "smallest": "Search for the smallest server that holds an objective for its traffic.",
    },
    "Look": {
        "record": "Run a program on the GPU of this machine; record its memory.",
        "explain": "Explain a memory snapshot: owners of the peak, leaks, remedies.",
        "what-if": "Replay a snapshot under other allocator settings, or on another GPU.",
        "diff": "Compare two snapshots: what changed, by owner.",
        "watch": "Watch the GPUs of this machine, their processes and jobs.",
    },
    "Make it fit": {
        "fit": "Search for the fastest plan under which a program fits.",
        "largest": "Search for the largest batch, or other size, with which a program fits.",
        "exec": "Run a program under a plan, a cap or a guard, on the GPU of this machine.",
    },
    "Hold": {
        "check": "Check scenarios against their budgets and the lock file, or write it.",
    },
    "Operate": {
        "front": "Admit requests to servers of language models by the cache bytes they take.",
        "ui": "Open a local web page: calculator, GPUs, snapshots.",
    },
    "Set up": {
        "env": "Create a small environment with PyTorch's CUDA build.",
        "gpus": "List the known GPUs, or show one.",
        "doctor": "Say which torch, driver and GPU are here, and why a run would be refused.",
        "nvml": "Start a program that sees simulated GPUs through NVML (nvitop, exporters).",
    },
}
VERBS = {verb: text for verbs in GROUPS.values() for verb, text in verbs.items()}


# What `ullage` alone shows.
_START = f"""\
ullage predicts the GPU memory of a PyTorch program without a GPU. Start with:

  ullage estimate llama-3.1-8b --gpu h100-80gb --length 4096
      estimates the memory for training a model, from its configuration
  ullage run --gpu rtx-4090 -- train.py
      runs your program on a simulated GPU, and reports whether it fits
  ullage fit --gpu rtx-4090 -o plan.json -- train.py
      searches for the fastest plan under which it fits

`ullage --help` lists all {len(VERBS)} verbs, `ullage VERB --help` explains one."""


class LazyGroup(click.Group):
    """A click group that imports a verb's module when the verb is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's command, from its own module."""
        if cmd_name not in VERBS:
            return None
        name = cmd_name.replace("-", "_")
        command = getattr(import_module(f"ullage.verbs.{name}.command"), f"{name}_command")
        if not isinstance(command, click.Command):
            raise TypeError(f"{name}_command is {command!r}, expected a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb that was typed; of an unknown one, what may have been meant."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            close = get_close_matches(args[0], VERBS, n=1)
            meant = f"did you mean {close[0]}?" if close else f"expected {', '.join(VERBS)}"
            raise click.UsageError(f"there is no verb {args[0]!r}; {meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The groups of verbs in --help, from the table alone."""
        for group, verbs in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([*verbs.items()])


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="ullage", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> int:
    """Predict the GPU memory of a PyTorch program, without a GPU.

    \b
    ullage run --gpu h100-80gb -- train.py --batch-size 16
    """
    if context.invoked_subcommand is None:
        click.echo(_START, err=True)
        return WRONG_USE
    return 0


def main() -> None:
    """Runs the command line and exits."""
    if _LIVE_ON.isdisjoint(sys.argv[1:2]):
        gc.set_threshold(_NUM_YOUNG)
    _open_missing_streams()
    try:
        with _stopping():
            code = run_cli(sys.argv[1:])
    except KeyboardInterrupt:  # between two of these lines
        code = INTERRUPTED
    if any(thread.name == HANGING for thread in threading.enumerate()):
        # The interpreter would wait for the executor, too.
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    gc.freeze()  # the interpreter's end need not look for cycles in what the exit frees anyway
    sys.exit(code)


def run_cli(arguments: list[str]) -> int:
    """Runs the command line with these arguments; returns the exit code."""
    try:
        code = cli.main(arguments, prog_name="ullage", standalone_mode=False)
        sys.stdout.flush()
    except UllageError as error:
        say(f"ullage: {error}", is_aside=True)
        return ANSWER_IS_NO if isinstance(error, BudgetExceeded) else WRONG_USE
    except click.ClickException as error:
        _show_wrong_use(error)
        return WRONG_USE
    except (KeyboardInterrupt, click.Abort):
        with contextlib.suppress(OSError):  # the terminal may be gone
            click.echo("ullage: interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has ended (`ullage gpus | head`), and needs no more of it.
        drop_stdout()
        return 0
    except OSError as error:
        from ullage.ground.files import NotWrittenError

        if isinstance(error, NotWrittenError):
            why = f"{error.filename!r} could not be written: {error.strerror}"
            say(f"ullage: {why}", is_aside=True)
            return WRONG_USE
        if error.errno not in _UNWRITABLE:
            return report_crash(error, arguments)
        drop_stdout()
        say(f"ullage: the result could not be printed: {error.strerror}", is_aside=True)
        return WRONG_USE
    except Exception as error:  # the last resort: a defect of ullage's is no answer
        return report_crash(error, arguments)
    # A verb returns its exit code, or None for 0.
    return code if isinstance(code, int) else 0


def report_crash(error: Exception, arguments: Sequence[str]) -> int:
    """One line about an exception that nobody expected, and a file with the rest of it; never the
    exit code of an answer.
    """
    from ullage.verbs.command_line.crash import describe_crash, write_crash

    text = describe_crash(error, write_crash(error, arguments))
    with contextlib.suppress(OSError):
        say(f"ullage: {text}", is_aside=True)
    return CRASHED


def _open_missing_streams() -> None:
    """Where a stream was closed (`ullage run ... >&-`), what goes there goes nowhere."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number, which is the closed one
            setattr(sys, name, open(number, "w" if number else "r"))  # noqa: PTH123, SIM115


@contextlib.contextmanager
def _stopping() -> Iterator[None]:
    """SIGTERM and the like end ullage as Ctrl-C does: it cleans up, undisturbed by a second one.
    The third ends it where it is.
    """
    num_signals = 0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal num_signals
        del number, frame
        num_signals += 1
        if num_signals == 1:
            raise KeyboardInterrupt
        if num_signals >= _MAX_SIGNALS:
            os._exit(INTERRUPTED)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)  # all is done


def _show_wrong_use(error: click.ClickException) -> None:
    """click's message in our form; the help where it asks for help."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.exceptions.NoArgsIsHelpError) or context is None:
        error.show()
        return
    message = error.format_message().rstrip(".")
    text = f"ullage: {message[:1].lower()}{message[1:]}; see `{context.command_path} --help`"
    say(text, is_aside=True)
