"""Long lists of options are in sections, and fit a terminal."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from ullage.cli.main import cli


@pytest.mark.parametrize("verb", ["run", "fit", "estimate"])
def test_every_option_is_in_a_section(verb: str) -> None:
    shown = CliRunner().invoke(cli, [verb, "--help"], terminal_width=80)
    assert shown.exit_code == 0, shown.output
    before, _, other = shown.output.partition("\nOther:\n")
    (line,) = other.splitlines()
    assert "--help" in line
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    options = [one for one in command.params if isinstance(one, click.Option)]
    named = [line.split()[0].rstrip(",") for line in before.splitlines() if line[:3] == "  -"]
    assert sorted(named) == sorted(one.opts[0] for one in options)
    assert max(map(len, shown.output.splitlines())) <= 80
