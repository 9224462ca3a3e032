"""Long lists of options are in sections, and fit a terminal."""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

import click
import pytest
from benchmarks.speed.measure import Command, interleave
from click.testing import CliRunner

from ullage.cli import VERBS, cli

MAIN = "from ullage.cli import main; main()"
# 0.12 s where `import click` takes 0.05 s.
MOST_OVER_CLICK = 2.4
NUM_PARTS = 3


@pytest.mark.parametrize("verb", ["run", "fit", "estimate"])
def test_every_option_is_in_a_section(verb: str) -> None:
    shown = CliRunner().invoke(cli, [verb, "--help"], terminal_width=80)
    assert shown.exit_code == 0, shown.output
    before, _, other = shown.output.partition("\nOther:\n")
    (line,) = other.partition("\nAlso in [")[0].split("\n\n")[0].splitlines()
    assert "--help" in line
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    options = [one for one in command.params if isinstance(one, click.Option)]
    named = [line.split()[0].rstrip(",") for line in before.splitlines() if line[:3] == "  -"]
    assert sorted(named) == sorted(one.opts[0] for one in options)
    assert max(map(len, shown.output.splitlines())) <= 80


@pytest.mark.parametrize("verb", ["run", "fit", "estimate"])
def test_the_five_options_that_matter_most_come_first(verb: str) -> None:
    shown = CliRunner().invoke(cli, [verb, "--help"], terminal_width=80)
    _, _, sections = shown.output.partition("\nMost used:\n")
    first = sections.partition("\n\n")[0]
    assert len([line for line in first.splitlines() if line.startswith("  -")]) == 5


def test_ullage_alone_shows_three_commands_to_start_with() -> None:
    shown = CliRunner().invoke(cli, [], standalone_mode=False)
    commands = [line for line in shown.output.splitlines() if line.startswith("  ullage ")]
    assert len(commands) == 3
    assert "ullage --help" in shown.output
    assert max(map(len, shown.output.splitlines())) <= 80
    assert shown.return_value == 2


@pytest.mark.parametrize("number", range(3))
def test_the_commands_to_start_with_are_possible(number: int) -> None:
    shown = CliRunner().invoke(cli, [], standalone_mode=False)
    lines = [line.split() for line in shown.output.splitlines() if line.startswith("  ullage ")]
    _, verb, *words = lines[number]
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    command.make_context(verb, words)


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_help_takes_little_more_than_click(part: int, tmp_path: Path) -> None:
    words = {verb: (MAIN, *verb.split(), "--help") for verb in ["", *VERBS][part::NUM_PARTS]}
    words["click"] = ("import click",)
    # Without bytecode each process would compile what it imports.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    commands = {
        verb: Command((sys.executable, "-c", *of), environment) for verb, of in words.items()
    }
    slow = set(words)
    for num_rounds in (3, 11):  # a verb is slow if it is so in more rounds, too
        timings = interleave({verb: commands[verb] for verb in slow}, tmp_path, num_rounds)
        took_s = {
            verb: statistics.median(each.processor_s for each in of) for verb, of in timings.items()
        }
        most_s = MOST_OVER_CLICK * took_s["click"]
        slow = {verb for verb, seconds in took_s.items() if seconds > most_s}
        if not slow:
            return
        slow.add("click")
    assert not slow, f"{took_s}; expected at most {most_s:.3f} s"
