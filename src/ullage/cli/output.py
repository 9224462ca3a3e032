"""Where a verb's results go: text or one JSON document to stdout, progress and remarks to stderr,
files by name.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ullage.api import Run
from ullage.units import format_bytes

if TYPE_CHECKING:
    from ullage.sweeps import Sweep

# Covers what an earlier, longer line left.
_PROGRESS_WIDTH = 32


@dataclass(frozen=True, slots=True)
class Output:
    """How a result is shown: as JSON, as the first line alone, and in a file too."""

    is_json: bool
    is_quiet: bool
    path: Path | None

    @contextmanager
    def progress(self) -> Iterator[Callable[[str], None] | None]:
        """What to call with a line of progress; None where nobody watches."""
        if self.is_quiet or not sys.stderr.isatty():
            yield None
            return
        try:
            yield _show_progress
        finally:
            click.echo("\x1b[K", nl=False, err=True)


def _show_progress(line: str) -> None:
    """Shows "step 3 allocated 8641234567" at the right edge and puts the cursor back, so that the
    program's own lines are left alone.
    """
    words = line.split()
    text = f"step {words[1]}, {format_bytes(int(words[3]))} allocated" if len(words) == 4 else line
    width = shutil.get_terminal_size().columns
    shown = f"{text:>{_PROGRESS_WIDTH}}"[-width:]
    column = width - len(shown) + 1
    click.echo(f"\x1b7\x1b[{column}G\x1b[2m{shown}\x1b[0m\x1b8", nl=False, err=True)


def write_run(run: Run, output: Output) -> None:
    """Writes the result of a run; the last lines name the files."""
    # Loaded by now: the run has imported them while the program was running.
    from rich.console import Console

    from ullage.report.text import print_run, verdict_line

    text = json.dumps(run.document, indent=2)
    if output.is_json:
        click.echo(text)
    elif output.is_quiet:
        click.echo(verdict_line(run.report))
    else:
        click.echo()  # the program's own output ends here
        print_run(run.report, Console())
    if output.path is not None:
        output.path.write_text(text + "\n", encoding="utf-8")
    written = [*(process.snapshot for process in run.report.processes), output.path]
    for path in written:
        if path is not None:
            click.echo(f"Wrote {path}", err=output.is_json or output.is_quiet)


def write_sweep(sweep: Sweep, output: Output, plot: Path | None) -> None:
    """Writes the result of a sweep; the last lines name the files."""
    from rich.console import Console

    from ullage.report.sweep import print_sweep, sweep_lines

    text = json.dumps(sweep.document, indent=2)
    if output.is_json:
        click.echo(text)
    elif output.is_quiet:
        for line in sweep_lines(sweep.report):
            click.echo(line)
    else:
        print_sweep(sweep.report, Console())
    if output.path is not None:
        output.path.write_text(text + "\n", encoding="utf-8")
    for path in (plot, output.path):
        if path is not None:
            click.echo(f"Wrote {path}", err=output.is_json or output.is_quiet)
