"""Options and arguments that several verbs have, each said once.

@click.command("lock")
@flags.python
@flags.force
def lock_command(*, python: str | None, force: bool) -> int: ...
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import click

from ullage.cli.output import FILE

_Options = TypeVar("_Options")

# What is run.
program = click.argument(
    "program", nargs=-1, type=click.UNPROCESSED, metavar="-- PROGRAM [ARGUMENTS]"
)
python = click.option(
    "--python", metavar="PATH", help="Python interpreter of the program's environment."
)


def _split_files(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    """The files of a guard's rungs; None: there is no guard."""
    return None if value is None else (*filter(None, value.split(",")),)


def _split_words(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> tuple[str, ...]:
    """The words in a text, as a shell reads them."""
    try:
        return (*shlex.split(value or ""),)
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: {error}") from None


guard = click.option(
    "--guard",
    is_flag=False,
    flag_value="",
    metavar="[FILE,...]",
    callback=_split_files,
    help="Where it ends out of memory, start it again under the next of these plans or of a ladder "
    "from `ullage fit`; without a file: under checkpoints.",
)
resume = click.option(
    "--resume",
    metavar="WORDS",
    callback=_split_words,
    help="What a restart appends to the program's words, to go on from its checkpoint.",
)
alloc_conf = click.option(
    "--alloc-conf", metavar="TEXT", help="Set PYTORCH_ALLOC_CONF for the program."
)
search_steps = click.option(
    "--steps", type=int, metavar="N", help="Training steps of each run; default: 3."
)
dummy_weights = click.option("--dummy-weights", is_flag=True, help="Generate missing weight files.")
assume = click.option(
    "--assume",
    multiple=True,
    metavar="NAME=VALUE",
    help="Assumption about unknown values: nonzero=all|half|none|FRACTION, "
    "experts=worst|balanced, values=plausible|zeros.",
)
measured = click.option(
    "--measured",
    type=FILE,
    metavar="FILE",
    help="Correct the times by a recording on that GPU (`ullage record --kernels`).",
)

# On what.
memory = click.option(
    "--memory", metavar="SIZE", help="Total memory of the GPU, for example 24GiB."
)
capability = click.option(
    "--capability", metavar="M.N", help="Compute capability of the GPU, for example 8.9."
)

# Scenarios of ullage.toml.
scenarios = click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...")


def _search(_context: click.Context, _option: click.Parameter, value: Path | None) -> Path | None:
    """The file that was named, or else the one that is found, which is said."""
    from ullage.cli.main import say
    from ullage.configuration.project_file import find_configuration

    file = value or find_configuration(Path.cwd())
    if file != value:
        say(f"ullage: configuration: {file}", is_aside=True)
    return file


config = click.option(
    "--config",
    type=FILE,
    metavar="FILE",
    callback=_search,
    help="Configuration; default: ullage.toml in this directory or above.",
)
no_cache = click.option(
    "--no-cache", is_flag=True, help="Run every scenario, even if its result is cached."
)

# What is written.
plan_output = click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="FILE",
    help="Write the plan to this file, for example plan.json.",
)
document_output = click.option(
    "-o", "--output", type=FILE, metavar="FILE", help="Also write the document (JSON)."
)
plot = click.option(
    "--plot", type=FILE, metavar="FILE", help="Draw the result: .svg, .png or .pdf."
)
html = click.option("--html", type=FILE, metavar="FILE", help="Also write an HTML page.")
plot_recorded = click.option(
    "--plot",
    type=FILE,
    metavar="FILE",
    help="Draw what was recorded: memory, step times, retries, latencies (.svg, .png, .pdf).",
)
as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print the JSON document instead of the report."
)
full = click.option("--full", is_flag=True, help="Print the full report instead of the short one.")
force = click.option("--force", is_flag=True, help="Overwrite existing files.")
quiet = click.option("--quiet", is_flag=True, help="Print only the first line.")
quiet_run = click.option("--quiet", is_flag=True, help="Print only the verdict, without progress.")


def as_record(
    record: Callable[..., _Options],
) -> Callable[[Callable[[_Options], int]], Callable[..., int]]:
    """Lets a command take one record: a frozen dataclass with a field for each of its parameters.

    @click.command("run")
    @flags.force
    @flags.as_record(RunOptions)
    def run_command(options: RunOptions) -> int: ...
    """

    def wrap(command: Callable[[_Options], int]) -> Callable[..., int]:
        @functools.wraps(command)
        def call(**values: object) -> int:
            return command(record(**values))

        return call

    return wrap


def in_sections(sections: Mapping[str, Sequence[str]]) -> type[click.Command]:
    """A kind of command whose --help has its options in sections.

    Args:
        sections: names of parameters by the title of their section; the rest comes last.
    """

    class Sectioned(click.Command):
        def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            params = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
            rows = {param.name: param.get_help_record(ctx) for param in params}
            parts = {title: [rows.pop(name) for name in names] for title, names in sections.items()}
            for title, records in {**parts, "Other": [*rows.values()]}.items():
                with formatter.section(title):
                    formatter.write_dl([row for row in records if row is not None])

    return Sectioned
