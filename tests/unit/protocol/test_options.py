"""An option is written once: what follows from a verb's record."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

import ullage
from ullage.cli import VERBS, cli, run_cli
from ullage.ground.errors import SpecError
from ullage.ground.protocol.option import share
from ullage.verbs import SECTIONS
from ullage.verbs.capacity.options import CapacityOptions
from ullage.verbs.check.gate.config import load_configuration
from ullage.verbs.command_line.command import Verb
from ullage.verbs.command_line.schema import file_schema
from ullage.verbs.estimate.options import TrainingOptions
from ullage.verbs.explain.options import ExplainOptions, WhatIfOptions
from ullage.verbs.fit.options import FitOptions
from ullage.verbs.largest.options import LargestOptions
from ullage.verbs.record.options import RecordOptions
from ullage.verbs.run.options import RunOptions
from ullage.verbs.smallest.options import SmallestOptions

# As in a verb's function.py, without all that it imports; each line of CALLS is wrong in the way it
# says.
FUNCTIONS = """\
from ullage.verbs.estimate.options import TrainingOptions
from ullage.verbs.explain.options import ExplainOptions
from ullage.verbs.fit.options import FitOptions
from ullage.ground.protocol.option import takes
from ullage.verbs.run.options import RunOptions
@takes(RunOptions)
def run(options: RunOptions) -> int: return 0
@takes(FitOptions)
def fit(options: FitOptions) -> int: return 0
@takes(TrainingOptions)
def estimate_training(options: TrainingOptions) -> int: return 0
@takes(ExplainOptions)
def explain_file(options: ExplainOptions) -> int: return 0
"""
CALLS = """\
run(("train.py",), gpuu="t4")               # did you mean "gpu"
run(("train.py",), platform="mac")          # Literal['linux', 'windows']
run()                                       # Missing positional argument "program"
estimate_training()                         # Missing positional argument "model"
estimate_training("a", loss="none")         # Literal['full', 'chunked', 'fused']
fit(["train.py"], allow="anything")         # Literal['same', 'rounding', 'training']
explain_file("a.pickle", try_remedies="y")  # expected "bool"
text: str = run(("train.py",))              # expression has type "int"
"""
RIGHT = """\
run(["train.py"], gpu="t4", memory="24GiB", ranks=0, world_size=2, on_progress=print)
run.act(RunOptions(("train.py",)))
number: int = estimate_training("gpt2", length=64, sharding="fsdp", checkpointing=2)
"""


@pytest.mark.slow
def test_a_type_checker_holds_calls_against_the_records(tmp_path: Path) -> None:
    program = tmp_path / "calls.py"
    program.write_text(FUNCTIONS + CALLS + RIGHT)
    source = Path(ullage.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context",
         "--follow-imports=silent", f"--cache-dir={tmp_path / 'cache'}", str(program)],
        capture_output=True, text=True, check=False, env={**os.environ, "MYPYPATH": str(source)},
        cwd=tmp_path,
    )  # fmt: skip
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    first = len(FUNCTIONS.splitlines()) + 1
    assert len(errors) == len(CALLS.splitlines()), done.stdout + done.stderr
    for number, (error, line) in enumerate(zip(errors, CALLS.splitlines(), strict=True), first):
        assert f":{number}: " in error and line.rpartition("# ")[2] in error


@pytest.mark.parametrize(
    ("function", "record"),
    [
        (ullage.run, RunOptions), (ullage.sweep, RunOptions), (ullage.fit, FitOptions),
        (ullage.record_program, RecordOptions), (ullage.estimate_training, TrainingOptions),
        (ullage.explain_file, ExplainOptions), (ullage.what_if, WhatIfOptions),
        (ullage.capacity, CapacityOptions), (ullage.largest, LargestOptions),
        (ullage.smallest, SmallestOptions),
    ],
    ids=lambda value: value.__name__,
)  # fmt: skip
def test_a_function_has_the_fields_of_its_record(function: Any, record: Any) -> None:
    names = [field.name for field in fields(record)]
    assert sorted(inspect.signature(function).parameters) == sorted(names)
    text = inspect.getdoc(function) or ""
    for field in fields(record):
        option = field.metadata.get("option")
        assert option is None or f"{field.name}: {option.help}" in text


def read(verb: str, *words: str) -> list[Any]:
    """The records of a command line."""
    command = cli.get_command(click.Context(cli), verb)
    assert isinstance(command, Verb)
    return command.read(command.make_context(verb, [*words]))


def test_what_a_type_says_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    options, output = read(
        "run", "--gpu", "l4", "--memory", "1GiB", "--steps", "3", "--sweep", "b=1,2", "--ranks",
        "0,7", "--guard", "--resume", "--last 'a b'", "--plan", "plan.json",
        "--assume", "nonzero=half", "--assume", "values=zeros", "-o", "d.json", "--json", "--",
        "train.py", "--gpu", "t4",
    )  # fmt: skip
    assert options == RunOptions(
        ("train.py", "--gpu", "t4"), gpu="l4", memory="1GiB", steps=3, sweep={"b": ["1", "2"]},
        ranks=[0, 7], guard=(), resume=("--last", "a b"), plan=Path("plan.json"),
        assume=("nonzero=half", "values=zeros"),
    )  # fmt: skip
    assert (output.output, output.as_json, output.full) == ((Path("d.json"),), True, False)


SECTION = """\
[run]
gpu = "l4"
python = "thin/bin/python"
plan = "plan.json"
steps = 3
assume = ["nonzero=half"]
sweep = ["batch=1,2"]
values = false
"""


def test_the_section_of_a_verb_holds_where_the_command_line_does_not_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ullage.toml").write_text(SECTION)
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    options, _ = read("run", "--steps", "5", "--", "train.py")
    assert options == RunOptions(
        ("train.py",), gpu="l4", python=str(tmp_path / "thin/bin/python"), steps=5, values=False,
        plan=tmp_path / "plan.json", assume=("nonzero=half",), sweep={"batch": ["1", "2"]},
    )  # fmt: skip
    assert read("record", "--", "train.py")[0] == RecordOptions(("train.py",))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("stesp = 3", "ullage.toml:3: run has no option 'stesp'; did you mean 'steps'?"),
        ("program = ['a']", "ullage.toml:3: run has no option 'program'; expected gpu, "),
        ("steps = 'three'", "ullage.toml:3: run.steps is 'three'; expected a whole number"),
        ("steps = true", "ullage.toml:3: run.steps is true; expected a whole number"),
        ("platform = 'mac'", "ullage.toml:3: run.platform is 'mac'; expected linux or windows"),
        ("assume = 3", "ullage.toml:3: run.assume is 3; expected a list"),
        ("ranks = '0,x'", "ullage.toml:3: run.ranks '0,x' are not ranks; give numbers or"),
        ("[run.zoo]", "ullage.toml:3: run has no option 'zoo'; expected gpu, "),
    ],
)
def test_a_wrong_key_is_named_with_its_file_and_line(
    line: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ullage.toml").write_text(f"[run]\ngpu = 'l4'\n{line}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError) as caught:
        read("run", "--", "train.py")
    assert str(caught.value).startswith(message)


def test_scenarios_stand_beside_a_section_of_options(tmp_path: Path) -> None:
    path = tmp_path / "ullage.toml"
    path.write_text(SECTION + '[scenario.a]\ncommand = "train.py"\n')
    assert [*load_configuration(tmp_path, path).scenarios] == ["a"]
    path.write_text('[rnu]\ngpu = "l4"\n[scenario.a]\ncommand = "train.py"\n')
    with pytest.raises(SpecError, match=r"ullage\.toml:1: the file has no key 'rnu'"):
        load_configuration(tmp_path, path)


def test_a_file_that_others_may_write_is_not_obeyed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ullage.toml"
    path.write_text("[run]\ngpu = 'l4'\n")
    path.chmod(0o666)
    monkeypatch.chdir(tmp_path)
    assert read("run", "--", "train.py")[0].gpu is None
    assert "[run] is not read" in capsys.readouterr().err


@pytest.mark.parametrize("given", [{"length": "512"}, {"batch": 2.5}])
def test_a_function_refuses_what_is_not_the_number_it_expects(given: dict[str, Any]) -> None:
    ((name, value),) = given.items()
    with pytest.raises(SpecError, match=rf"^{name}={value!r} is not a whole number"):
        ullage.estimate_training("gpt2", **given)


def test_an_editor_gets_a_schema() -> None:
    sections = file_schema()["properties"]
    assert {*sections} == {*SECTIONS}
    assert sections["run"]["additionalProperties"] is False
    kinds = sections["run"]["properties"]
    assert kinds["steps"]["type"] == "integer" and kinds["price"]["type"] == "number"
    assert kinds["platform"]["enum"] == ["linux", "windows"]
    assert kinds["sweep"] == {
        "type": "array", "items": {"type": "string"}, "description": kinds["sweep"]["description"]
    }  # fmt: skip
    assert "program" not in kinds and "on_progress" not in kinds
    for verb in SECTIONS:
        command = cli.get_command(click.Context(cli), verb)
        assert isinstance(command, Verb)
        options = [each.name for each in command.params if isinstance(each, click.Option)]
        names = [*filter(None, options), *command.settings]
        assert sorted(sections[verb]["properties"]) == sorted(names)
    assert json.dumps(sections)


def records_of(verb: str) -> list[Any]:
    """The records that a verb is made of."""
    command = cli.get_command(click.Context(cli), verb)
    assert isinstance(command, Verb)
    return [*command.records]


@pytest.mark.parametrize("verb", VERBS)
def test_every_record_can_be_read_without_an_option(verb: str) -> None:
    words = {"diff": ["a", "b"], "env": ["d"], "nvml": ["d"], "explain": ["a"],
             "what-if": ["a"], "capacity": ["a"]}  # fmt: skip
    for record, options in zip(records_of(verb), read(verb, *words.get(verb, [])), strict=True):
        assert isinstance(options, record)


def test_a_shell_completes_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from click.shell_completion import BashComplete

    def complete(*words: str) -> list[str]:
        found = BashComplete(cli, {}, "ullage", "_ULLAGE_COMPLETE")
        return [each.value for each in found.get_completions([*words[:-1]], words[-1])]

    assert complete("run", "--gpu", "h100-8") == ["h100-80gb"]
    assert "l4,t4" in complete("run", "--gpu", "l4,t")
    assert complete("run", "--clock", "v") == ["virtual"]
    assert "--try-remedies" in complete("run", "--try")


def test_fields_are_shared_by_their_names() -> None:
    options = FitOptions(["a.py"], gpu="l4", steps=2, measured="m.pickle")
    assert share(RunOptions, options, time=True) == RunOptions(
        ["a.py"], gpu="l4", gpus=1, steps=2, measured="m.pickle", time=True
    )


def test_a_wrong_value_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["run", "--sweep", "batch", "--", "train.py"]) == 2
    assert capsys.readouterr().err == (
        "ullage: --sweep 'batch' gives no values; for example: --sweep batch=1,2,4\n"
    )
