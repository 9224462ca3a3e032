"""What follows `--`: a file, a module, an entry point, or a reason why it is none of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ullage.ground.errors import SpecError
from ullage.players.phantom.program import resolve_program


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return tmp_path


def make_command(directory: Path, name: str, first_line: str, rest: str = "") -> Path:
    path = directory / name
    path.write_text(f"{first_line}\n{rest}\n")
    path.chmod(0o755)
    return path


def test_a_file_runs_under_this_interpreter(here: Path) -> None:
    program = resolve_program(["train.py", "--lr", "-1"])
    assert (program.python, program.arguments) == (sys.executable, ("train.py", "--lr", "-1"))
    assert program.name == "train"


def test_a_module_keeps_its_flag(here: Path) -> None:
    program = resolve_program(["-m", "package.train", "x"])
    assert program.arguments == ("-m", "package.train", "x")


def test_python_before_a_file_chooses_the_interpreter(here: Path) -> None:
    program = resolve_program([sys.executable, "train.py"])
    assert (program.python, program.arguments) == (sys.executable, ("train.py",))
    assert program.argv == (sys.executable, "train.py")


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        ("#!PYTHON", ""),
        ("#!/bin/sh", "'''exec' PYTHON \"$0\" \"$@\"\n' '''"),
        ("#!/bin/sh", "'''exec' \"PYTHON\" \"$0\" \"$@\"\n' '''"),
    ],
    ids=["plain", "by a shell", "by a shell, in quotes"],  # without the path of this clone
)
def test_an_entry_point_runs_under_its_own_interpreter(
    here: Path, monkeypatch: pytest.MonkeyPatch, first: str, rest: str
) -> None:
    # By a name without spaces, at which a first line ends.
    python = str(here / "python")
    Path(python).symlink_to(sys.executable)
    first, rest = (text.replace("PYTHON", python) for text in (first, rest))
    script = make_command(here / "", "launcher-of-mine", first, rest)
    (here / "bin").mkdir()
    script.rename(here / "bin" / "launcher-of-mine")
    monkeypatch.setenv("PATH", str(here / "bin"))
    program = resolve_program(["launcher-of-mine", "train.py"])
    assert program.python == python
    assert program.arguments == (str(here / "bin" / "launcher-of-mine"), "train.py")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no program was given"),
        (["-m"], "not followed by a module"),
        (["--gpu", "t4"], "is not a program"),
        (["missing.py"], "there is no file 'missing.py'"),
        (["./missing"], "there is no file './missing'"),
        (["no-such-command-of-mine"], "neither a file here nor a command"),
        (["folder"], "directory without __main__"),
        (["native-tool"], "not a Python program"),
    ],
)
def test_what_cannot_run_is_refused_with_a_reason(
    here: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    (here / "folder").mkdir()
    (here / "bin").mkdir()
    make_command(here / "bin", "native-tool", "#!/bin/bash")
    monkeypatch.setenv("PATH", str(here / "bin"))
    with pytest.raises(SpecError, match=message):
        resolve_program(words)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_an_unreadable_file_is_refused(here: Path) -> None:
    (here / "train.py").chmod(0)
    with pytest.raises(SpecError, match="cannot be read"):
        resolve_program(["train.py"])


def test_an_unknown_interpreter_is_refused(here: Path) -> None:
    with pytest.raises(SpecError, match="there is no interpreter"):
        resolve_program(["train.py"], python="/no/such/python")


@pytest.fixture
def clone(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of a project whose command, directory and package have one name."""
    (here / "bin").mkdir()
    (here / "python").symlink_to(sys.executable)  # a first line ends its interpreter at a space
    make_command(here / "bin", "yolo", f"#!{here / 'python'}")
    monkeypatch.setenv("PATH", str(here / "bin"))
    (here / "yolo").mkdir()
    return here


@pytest.mark.parametrize("files", [(), ("__init__.py",), ("__init__.py", "__main__.py")])
def test_a_command_beats_a_directory_that_is_no_program(
    clone: Path, files: tuple[str, ...]
) -> None:
    for name in files:
        (clone / "yolo" / name).touch()
    program = resolve_program(["yolo", "train"])
    assert program.arguments == (str(clone / "bin" / "yolo"), "train")
    (remark,) = program.remarks
    assert "the command was run" in remark and str(clone / "bin" / "yolo") in remark


def test_a_command_beats_a_directory_under_another_interpreter(clone: Path) -> None:
    program = resolve_program(["yolo"], python=sys.executable)
    assert program.arguments == (str(clone / "bin" / "yolo"),)


def test_a_directory_that_is_a_program_beats_a_command(clone: Path) -> None:
    (clone / "yolo" / "__main__.py").touch()
    program = resolve_program(["yolo"])
    assert (program.arguments, program.remarks) == (("yolo",), ())


def test_a_directory_named_as_one_is_not_a_command(clone: Path) -> None:
    (clone / "yolo" / "__init__.py").touch()
    (clone / "yolo" / "__main__.py").touch()
    assert resolve_program(["yolo/"]).arguments == ("yolo/",)


def test_a_package_without_a_command_runs_as_the_directory_it_is(here: Path) -> None:
    (here / "package").mkdir()
    for name in ("__init__.py", "__main__.py"):
        (here / "package" / name).touch()
    assert resolve_program(["package"]).arguments == ("package",)


def test_a_command_of_a_shell_is_refused_under_another_interpreter_too(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_command(here, "tool", "#!/bin/bash")
    (here / "bin").mkdir()
    (here / "tool").rename(here / "bin" / "tool")
    monkeypatch.setenv("PATH", str(here / "bin"))
    with pytest.raises(SpecError, match="a script for /bin/bash"):
        resolve_program(["tool"], python=sys.executable)
