"""`ullage check`: checks scenarios against their budgets and the lock file."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ullage.cli.main import say
from ullage.cli.options import flags
from ullage.cli.output import FILE, UNWRITABLE, Output, check_files, write_result
from ullage.errors import SpecError
from ullage.files import make_directory, write_text

if TYPE_CHECKING:
    from ullage.api.check import Check

FORMATS = ("text", "json", "junit", "github")


@click.command("check")
@flags.scenarios
@flags.config
@flags.python
@flags.no_cache
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", help="Default: text.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "-o", "--output", type=FILE, metavar="FILE", help="Also write JSON, or XML with --format junit."
)
@click.option("--html", type=FILE, metavar="DIR", help="Write a page for each change into DIR.")
@flags.force
@flags.quiet
def check_command(
    scenarios: tuple[str, ...],
    *,
    config: Path | None,
    python: str | None,
    no_cache: bool,
    form: str,
    as_json: bool,
    output: Path | None,
    html: Path | None,
    force: bool,
    quiet: bool,
) -> int:
    """Run scenarios on simulated GPUs: does one need more memory than its budget or lock allows?

    \b
    ullage check
    ullage check train --html pages
    ullage check --format github

    Scenarios and their budgets are in ullage.toml; `ullage lock` writes what they need into
    ullage.lock.

    Exits with 0 if no limit is exceeded, 1 if one is, 2 if the configuration is wrong, 3 if a
    program failed.
    """
    from ullage.api.check import check

    if as_json and form not in {"text", "json"}:
        raise SpecError(f"--json and --format {form} are both given; keep one of them")
    form = "json" if as_json else form
    target = Output(
        is_json=form == "json",
        is_quiet=quiet,
        path=None if form == "junit" else output,
        force=force,
    )
    check_files(("--output", output), force=force)
    if html is not None and html.exists() and not html.is_dir():
        raise SpecError(f"--html {str(html)!r} is a file; give a directory")
    with target.progress() as on_progress:
        result = check(
            scenarios, config=config, python=python, cached=not no_cache, pages=html is not None,
            on_progress=on_progress,
        )  # fmt: skip
    pages = {} if html is None else _write_pages(result, html)
    files: list[object] = [*pages.values()]
    if form == "junit" and output is not None:
        from ullage.report.document.check_ci import junit_report

        files.append(write_text(junit_report(result.view), output, force=force))
    is_printed_as_xml = form == "junit" and output is None
    is_written = write_result(
        target,
        lambda: result.document,
        lambda: _show(result, form, pages, is_quiet=quiet, is_xml=is_printed_as_xml),
        [] if is_printed_as_xml else files,
    )
    return result.exit_code if is_written else UNWRITABLE


def _show(
    result: Check, form: str, pages: dict[str, Path], *, is_quiet: bool, is_xml: bool
) -> None:
    from ullage.answers.text import print_blocks
    from ullage.report.document.check_ci import (
        github_annotations,
        github_link,
        github_summary,
        junit_report,
    )
    from ullage.report.text.check import check_blocks, check_line

    if is_xml:
        click.echo(junit_report(result.view), nl=False)
    elif is_quiet:
        say(check_line(result.view))
    elif form == "github":
        token = f"ullage-{secrets.token_hex(16)}"
        click.echo(f"::stop-commands::{token}")  # whatever a line of the report begins with
        print_blocks(check_blocks(result.view))
        click.echo(f"::{token}::")
    else:
        print_blocks(check_blocks(result.view))
    if form != "github":
        return
    for line in github_annotations(result.view, Path(os.environ.get("GITHUB_WORKSPACE", "."))):
        say(line)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        links = {name: github_link(path, os.environ) for name, path in pages.items()}
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(github_summary(result.view, links))


def _write_pages(result: Check, directory: Path) -> dict[str, Path]:
    """A page of each entry that changed; pages of an earlier check are overwritten."""
    make_directory(directory)
    return {
        name: write_text(page, directory / f"{_file_name(name)}.html", force=True)
        for name, page in result.pages.items()
    }


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.=-]+", "-", name)
