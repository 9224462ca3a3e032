"""`ullage check`: checks scenarios against their budgets and the lock file."""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from ullage.cli.main import say
from ullage.cli.options.command import command
from ullage.cli.output import OUTPUT, UNWRITABLE, Output, check_files, write_result
from ullage.errors import SpecError
from ullage.files import make_directory, write_text
from ullage.protocol.options.check import CheckOptions
from ullage.protocol.options.option import File

if TYPE_CHECKING:
    from ullage.api.check import Check


@dataclass(frozen=True, slots=True)
class CheckOutput(Output):
    """The outputs of a check."""

    form: Literal["text", "json", "junit", "github"] = OUTPUT(
        "Default: text.", None, "--format", default="text"
    )


@command(
    outputs=("output", "html", "as_json", "force", "quiet"),
    says={
        "output": "Also write JSON, or XML with --format junit.",
        "html": "Write a page for each change into this directory.",
        "as_json": "The same as --format json.",
    },
)
def check_command(options: CheckOptions, output: CheckOutput) -> int:
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

    config = name_configuration(options.config)
    if output.as_json and output.form not in {"text", "json"}:
        raise SpecError(f"--json and --format {output.form} are both given; keep one of them")
    html, xml = output.html, output.output if output.form == "junit" else None
    check_files(("--output", output.output), force=output.force)
    if html is not None and html.exists() and not html.is_dir():
        raise SpecError(f"--html {str(html)!r} is a file; give a directory")
    output = replace(
        output,
        as_json=output.as_json or output.form == "json",
        output=None if output.form == "junit" else output.output,
    )
    with output.progress() as on_progress:
        result = check.act(
            replace(options, config=config, pages=html is not None, on_progress=on_progress)
        )
    pages = {} if html is None else _write_pages(result, html)
    files: list[object] = [*pages.values()]
    if xml is not None:
        from ullage.report.document.check_ci import junit_report

        files.append(write_text(junit_report(result.view), xml, force=output.force))
    is_xml = output.form == "junit" and xml is None
    is_written = write_result(
        output,
        lambda: result.document,
        lambda: _show(result, output.form, pages, is_quiet=output.quiet, is_xml=is_xml),
        [] if is_xml else files,
    )
    return result.exit_code if is_written else UNWRITABLE


def name_configuration(config: File | None) -> File | None:
    """The configuration that was named, or else the one that is found, which is said."""
    from ullage.configuration.project_file import find_configuration

    if config is None:
        config = find_configuration(Path.cwd())
        if config is not None:
            say(f"ullage: configuration: {config}", is_aside=True)
    return config


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
