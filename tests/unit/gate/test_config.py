"""The configuration: what is right is read, and what is wrong is an error with its line."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from tests.rows import each

from ullage.ground.config.tables import find_line
from ullage.ground.errors import SpecError
from ullage.ground.units import GIB
from ullage.verbs.check.gate.budget import Amount
from ullage.verbs.check.gate.config import Configuration, load_configuration
from ullage.verbs.check.gate.matching import is_of, select
from ullage.verbs.check.gate.scenario import expand

Refuse = Callable[[Path, str, int, str], None]


def load(directory: Path, text: str, name: str = "ullage.toml") -> Configuration:
    """The configuration of a directory with this file."""
    (directory / name).write_text(text, encoding="utf-8")
    return load_configuration(directory)


def test_the_smallest_configuration(tmp_path: Path) -> None:
    found = load(tmp_path, '[scenario.train]\ncommand = "train.py"\ngpu = "h100-80gb"\n')
    (case,) = expand(found.scenarios["train"])
    assert (case.name, case.scenario.command, case.gpu) == ("train", ("train.py",), "h100-80gb")
    assert case.scenario.directory == tmp_path
    assert found.lock_path == tmp_path / "ullage.lock"


def test_every_key_is_read(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    text = """
[scenario.train]
command = ["train.py", "--batch-size", "{batch}"]
gpu = ["l4", "t4"]
memory = "12GiB"
capability = "8.9"
alloc_conf = "expandable_segments:True"
steps = 3
python = "thin/bin/python"
directory = "sub"
env = { SEED = 1, NAME = "b{batch}" }
values = false
assume = ["nonzero=half"]
dummy_weights = true
real_init = true
inputs = "data/*.bin"
tolerance = "2%"

[scenario.train.matrix]
batch = [8, 16]

[scenario.train.budget]
max_used = "11GiB"
max_reserved = "10GiB"
max_allocated = 9663676416
headroom = "512MiB"
growth_per_step = "0B"
"""
    scenario = load(tmp_path, text).scenarios["train"]
    assert scenario.python == str(tmp_path / "thin/bin/python")
    assert scenario.directory == tmp_path / "sub"
    assert (scenario.steps, scenario.values, scenario.dummy_weights) == (3, False, True)
    assert scenario.tolerance == Amount(share=Fraction(1, 50))
    assert scenario.budget.max_allocated_bytes == 9 * GIB
    assert scenario.budget.growth_bytes == 0
    cases = expand(scenario)
    assert [case.name for case in cases] == [
        "train/batch=8,gpu=l4", "train/batch=8,gpu=t4",
        "train/batch=16,gpu=l4", "train/batch=16,gpu=t4",
    ]  # fmt: skip
    assert cases[3].scenario.command == ("train.py", "--batch-size", "16")
    assert cases[3].scenario.env == {"SEED": "1", "NAME": "b16"}


def test_a_command_is_split_as_a_shell_would(tmp_path: Path) -> None:
    found = load(tmp_path, "[scenario.a]\ncommand = \"train.py --name 'two words'\"\n")
    assert found.scenarios["a"].command == ("train.py", "--name", "two words")


def test_gpus_may_be_in_the_matrix(tmp_path: Path) -> None:
    text = '[scenario.a]\ncommand = "train.py"\nmatrix = { gpu = ["l4", "t4"] }\n'
    cases = expand(load(tmp_path, text).scenarios["a"])
    assert [(case.name, case.gpu) for case in cases] == [("a/gpu=l4", "l4"), ("a/gpu=t4", "t4")]


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("rank = 3", (3,)), ("ranks = [0, 7]", (0, 7)), ('ranks = "distinct"', "distinct"),
     ("", (0,))],
)  # fmt: skip
def test_ranks_of_a_job(tmp_path: Path, text: str, ranks: object) -> None:
    found = load(tmp_path, f'[scenario.a]\ncommand = "train.py"\nworld_size = 8\n{text}\n')
    assert found.scenarios["a"].ranks == ranks


def test_it_is_found_above_and_in_pyproject(tmp_path: Path) -> None:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    text = '[project]\nname = "x"\n[tool.ullage.scenario.train]\ncommand = "train.py"\n'
    (tmp_path / "pyproject.toml").write_text(text)
    found = load_configuration(tmp_path / "src" / "deep")
    assert found.path == tmp_path / "pyproject.toml"
    assert found.scenarios["train"].line == 3


WRONG = {
    "no command": (
        '[scenario.train]\ngpu = "l4"', 1,
        'scenario.train.command is missing; write what to run: command = "train.py"',
    ),
    "a slip in command": ('[scenario.a]\ncomand = "x.py"', 2, "did you mean 'command'?"),
    "an empty command": ('[scenario.a]\ncommand = ""', 2, "a.command is empty; give"),
    "an open quote": ('[scenario.a]\ncommand = "a.py \'"', 2, "No closing quotation"),
    "an unknown key": (
        '[scenario.a]\ncommand = "a.py"\n\nbudgt = {}', 4, "did you mean 'budget'?",
    ),
    "an unknown key of a budget": (
        '[scenario.a]\ncommand = "a.py"\n[scenario.a.budget]\nmax_usd = "1GiB"', 4,
        "did you mean 'max_used'?",
    ),
    "an unknown table": ("[scenari.a]\n", 1, "did you mean 'scenario'?"),
    "an unknown GPU": (
        '[scenario.a]\ncommand = "a.py"\ngpu = "h10-80gb"', 3, "did you mean h100-80gb",
    ),
    "a wrong type": (
        '[scenario.a]\ncommand = "a.py"\nsteps = "3"', 3,
        "scenario.a.steps is '3'; expected a whole number",
    ),
    "a truth for a number": ('[scenario.a]\ncommand = "a.py"\nsteps = true', 3, "is true; "),
    "a number for a truth": ('[scenario.a]\ncommand = "a.py"\nvalues = 1', 3, "true or false"),
    "no steps": ('[scenario.a]\ncommand = "a.py"\nsteps = 0', 3, "is 0; expected 1 or more"),
    "a size in two readings": (
        '[scenario.a]\ncommand = "a.py"\ngpu = "l4"\nbudget = { max_used = "20G" }', 4,
        "can be read in two ways",
    ),
    "a budget that nothing exceeds": (
        '[scenario.a]\ncommand = "a.py"\ngpu = "l4"\nbudget = { max_used = "80GiB" }', 4,
        "nothing could exceed it; allow less",
    ),
    "a budget that nothing keeps": (
        '[scenario.a]\ncommand = "a.py"\ngpu = "l4"\nbudget = { max_used = "1MiB" }', 4,
        "the driver's context alone takes up to",
    ),
    "a headroom above the device": (
        '[scenario.a]\ncommand = "a.py"\ngpu = "l4"\nbudget = { headroom = "100%" }', 4,
        "ask for less",
    ),
    "a headroom on no GPU": (
        '[scenario.a]\ncommand = "a.py"\nbudget = { headroom = "5%" }', 3,
        'name one, such as: gpu = "h100-80gb"',
    ),
    "a tolerance that is none": (
        '[scenario.a]\ncommand = "a.py"\ntolerance = "much"', 3, "or a share, such as 5%",
    ),
    "a variable that is not used": (
        '[scenario.a]\ncommand = "a.py"\nmatrix = { b = [1] }', 3, "nor env has {b}",
    ),
    "a variable without values": (
        '[scenario.a]\ncommand = "a.py {b}"\n[scenario.a.matrix]\nb = []', 4, "expected a list",
    ),
    "a value twice": (
        '[scenario.a]\ncommand = "a.py {b}"\n[scenario.a.matrix]\nb = [1, 1]', 4, "'1' twice",
    ),
    "a name that is none": ('[scenario."a b"]\ncommand = "a.py"', 1, "a b is not a name"),
    "a rank of no job": ('[scenario.a]\ncommand = "a.py"\nranks = [0]', 3, "world_size = 8"),
    "a rank that is not there": (
        '[scenario.a]\ncommand = "a.py"\nworld_size = 4\nrank = 4', 3, "there is no rank 4 of 4",
    ),
    "rank and ranks": (
        '[scenario.a]\ncommand = "a.py"\nworld_size = 4\nranks = [0]\nrank = 1', 5, "keep one",
    ),
    "ranks and gpus": (
        '[scenario.a]\ncommand = "a.py"\nworld_size = 4\ngpus = 2', 4, "is for one process",
    ),
    "gpu twice": (
        '[scenario.a]\ncommand = "a.py"\ngpu = "l4"\nmatrix = { gpu = ["t4"] }', 3, "keep one",
    ),
    "a directory that is not there": (
        '[scenario.a]\ncommand = "a.py"\ndirectory = "x"', 3, "there is no such directory",
    ),
    "an assumption that is none": ('[scenario.a]\ncommand = "a.py"\nassume = "x=1"', 3, "x=1"),
    "a scenario that is none": ("[scenario]\na = 3", 2, "expected a table"),
    "a memory below the context": (
        '[scenario.a]\ncommand = "a.py"\n\nmemory = "5MiB"', 4, "driver's own context",
    ),
}  # fmt: skip


@each("name", WRONG)
def test_what_is_wrong_is_told_with_file_line_and_remedy(
    tmp_path: Path, name: str, refuse: Refuse
) -> None:
    refuse(tmp_path, *WRONG[name])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[scenario.a]\ncommand = "a"\n[scenario.a]\n', "two scenarios 'a' (at line 3"),
        ("[scenario.a\n", "at line 1"),
        ("", "has no scenario"),
    ],
)
def test_what_no_key_stands_for(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError) as raised:
        load(tmp_path, text)
    assert "ullage.toml" in str(raised.value)
    assert message in str(raised.value)


def test_no_configuration_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"there is no ullage.toml.*command = "):
        load_configuration(tmp_path)


def test_two_configurations_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.ullage.scenario.a]\ncommand = "a"\n')
    with pytest.raises(SpecError, match="keep one of them"):
        load(tmp_path, '[scenario.a]\ncommand = "a"\n')


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("scenario", "a", "command"), 3),
        (("scenario", "a", "budget", "max_used"), 4),
        (("scenario", "b.c", "gpu"), 8),
        (("scenario", "b.c", "none"), 7),
        (("other",), 1),
    ],
)
def test_the_line_of_a_key(path: tuple[str, ...], line: int) -> None:
    text = (
        "\n[scenario.a]  # first\n  command = 'x = [scenario.b]'\nbudget = { max_used = 1 }\n"
        "note = '''\ncommand = 3'''\n[scenario.'b.c']\ngpu = 'l4'\n"
    )
    assert find_line(text, path) == line


NAMES = ["train/batch=8", "train/batch=16", "eval", "training"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (["train"], ["train/batch=8", "train/batch=16"]),
        (["train/batch=8"], ["train/batch=8"]),
        (["eval", "train/batch=16"], ["train/batch=16", "eval"]),
        (["*=8"], ["train/batch=8"]),
        (["*"], NAMES),
    ],
)
def test_a_name_means_a_scenario_a_case_or_a_pattern(wanted: list[str], found: list[str]) -> None:
    assert list(select(NAMES, wanted)) == found


def test_a_name_that_means_nothing_is_an_error() -> None:
    with pytest.raises(SpecError, match="did you mean 'eval'"):
        select(NAMES, ["evil"])


def test_an_entry_is_of_a_case() -> None:
    assert is_of("train/rank=3", "train")
    assert is_of("train/batch=8,rank=3", "train/batch=8")
    assert not is_of("train/batch=80", "train/batch=8")
    assert not is_of("training", "train")
