"""The program after `--`, and the interpreter that runs it.

train.py --batch-size 16      a file, run as __main__
-m package.train              a module
torchrun train.py             a Python entry point, beside the chosen interpreter or on PATH; it is
                              preferred to a directory of that name that is a package or no program
python train.py               the same as a file, under that python
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ullage.ground.errors import SpecError
from ullage.ground.files import is_directory, is_file

_INTERPRETER = re.compile(r"python(3(\.\d+)?)?")
# The second line of a script whose interpreter's path is too long for "#!": '''exec'
# /long/path/python "$0" "$@"
_LONG_SHEBANG = re.compile(rb"'''exec' (?P<python>\"[^\"]+\"|\S+)")


@dataclass(frozen=True, slots=True)
class UserProgram:
    """A program to run: its interpreter, the interpreter's arguments, the words that the user
    typed, and its working directory; None means the current one. `remarks` name the choice if the
    words could mean several programs. `stdin` is a file descriptor; None: that of this process.
    """

    python: str
    arguments: tuple[str, ...]
    argv: tuple[str, ...]
    directory: Path | None = None
    remarks: tuple[str, ...] = ()
    stdin: int | None = None

    @property
    def name(self) -> str:
        """A short name for files, such as "train" for train.py."""
        words = self.arguments[1:] if self.arguments[0] == "-m" else self.arguments
        stem = Path(words[0]).stem or Path(words[0]).name
        return re.sub(r"[^A-Za-z0-9_.-]+", "-", stem) or "program"


def resolve_program(
    argv: Sequence[str], python: str | os.PathLike[str] | None = None, directory: Path | None = None
) -> UserProgram:
    """Finds the program that the words name.

    Args:
        argv: the words after `--`.
        python: the interpreter of another environment; None means the one that runs ullage.
        directory: the working directory; None means the current one.

    Raises:
        SpecError: there are no words, there is no such file or command, or it is not Python.
    """
    words = tuple(argv)
    if words and _INTERPRETER.fullmatch(Path(words[0]).name) and len(words) > 1:
        # `ullage run -- python train.py` runs train.py under that python.
        return replace(resolve_program(words[1:], python or words[0], directory), argv=words)
    if not words:
        raise SpecError(
            "no program was given; write it after --, such as: ullage run -- train.py --batch-size "
            "16"
        )
    interpreter = _find_interpreter(os.fspath(python)) if python else sys.executable
    if words[0] == "-m":
        if len(words) < 2:
            raise SpecError(
                "-m is not followed by a module; for example: ullage run -- -m package.train"
            )
        return UserProgram(interpreter, words, words, directory)
    if words[0].startswith("-"):
        raise SpecError(
            f"{words[0]!r} is not a program; only -m MODULE, a file or a command can follow --"
        )
    return _resolve_words(words, interpreter, directory, is_chosen=python is not None)


def _resolve_words(
    words: tuple[str, ...], interpreter: str, directory: Path | None, *, is_chosen: bool
) -> UserProgram:
    """Finds a file, a directory or a command; `is_chosen`: the user named the interpreter."""
    path = (directory or Path()) / words[0]
    command = _command_beside(path, words[0], interpreter)
    if command is None and os.access(path, os.F_OK):
        _check_script(path)
        return UserProgram(interpreter, words, words, directory)
    with suppress(OSError):  # it is no link
        target = os.readlink(path)  # noqa: PTH115 - as it is written
        raise SpecError(
            f"{words[0]!r} is a link to {target!r}, which does not exist; give a file that does"
        )
    if path.suffix == ".py" or os.sep in words[0]:
        raise SpecError(
            f"there is no file {words[0]!r} (in {str(directory or Path.cwd())!r}); check its name "
            f"and the {'current ' if directory is None else ''}directory"
        )
    script = command or _find_entry_point(words[0], interpreter)
    if is_chosen:
        _check_is_python(script)
    own = interpreter if is_chosen else _interpreter_of(script)
    remarks = () if command is None else (_remark_on(words[0], command),)
    return UserProgram(own, (str(script), *words[1:]), words, directory, remarks)


def _command_beside(path: Path, word: str, interpreter: str) -> Path | None:
    """Finds the command that a word names if there is also a directory of that name that is not
    a program, such as `litgpt` or `yolo` in the project's own clone. None: there is no such
    directory, or no such command.
    """
    is_program = is_file(path / "__main__.py") and not is_file(path / "__init__.py")
    if os.sep in word or is_program or not is_directory(path):
        return None
    script = _which_entry_point(word, interpreter)
    return None if script is None else Path(script)


def _remark_on(word: str, command: Path) -> str:
    return (
        f"{word!r} is a command ({command}) and a directory here: the command was run; write "
        f"{word + os.sep!r} for the directory"
    )


def _find_interpreter(python: str) -> str:
    path = shutil.which(os.path.expanduser(python))  # noqa: PTH111 - Path drops a leading ./
    if path is None:
        raise SpecError(
            f"there is no interpreter {python!r}; give the path of one, such as DIR/bin/python"
        )
    return path


def _check_script(path: Path) -> None:
    """Raises SpecError if python cannot run it: a script must be readable, and a directory must
    have a __main__.py.
    """
    file = path / "__main__.py" if is_directory(path) else path
    if not os.access(file, os.F_OK):
        raise SpecError(
            f"{str(path)!r} is a directory without __main__.py, and there is no command of that "
            "name beside the interpreter or on PATH; give a file, a command, or -m MODULE"
        )
    if not os.access(file, os.R_OK):
        raise SpecError(f"{str(file)!r} cannot be read; check its permissions")
    if file.is_file():  # not a pipe, which can be read only once
        _check_is_python(file)


def _check_is_python(file: Path) -> None:
    """Refuses files for which python reports only a syntax error: binaries and shell scripts."""
    try:
        with file.open("rb") as opened:
            begin = opened.read(4096)
    except OSError as error:
        raise SpecError(f"{str(file)!r} cannot be read: {error.strerror or error}") from None
    first, second = (*begin.split(b"\n", 2), b"")[:2]
    shebang = first.decode(errors="replace")
    if b"\0" in begin:
        from zipfile import is_zipfile

        if file.suffix == ".pyc" or is_zipfile(file):
            return  # compiled code or an archive, which python runs
        content = "a binary file"
    elif shebang.startswith("#!") and "python" not in shebang and b"exec" not in second:
        content = f"a script for {shebang[2:].strip()}"
    else:
        return
    raise SpecError(f"{str(file)!r} is {content}; give a Python file, or -m MODULE")


def _find_entry_point(name: str, interpreter: str) -> Path:
    script = _which_entry_point(name, interpreter)
    if script is None:
        raise SpecError(
            f"{name!r} is neither a file here nor a command beside {interpreter} or on PATH; "
            "give a Python file, -m MODULE, or a Python entry point such as torchrun"
        )
    return Path(script)


def _which_entry_point(name: str, interpreter: str) -> str | None:
    directories = f"{Path(interpreter).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return shutil.which(name, path=directories)


def _interpreter_of(script: Path) -> str:
    try:
        with script.open("rb") as file:
            first, second = file.readline(4096), file.readline(4096)
    except OSError as error:
        raise SpecError(f"{str(script)!r} cannot be read: {error.strerror or error}") from None
    long = _LONG_SHEBANG.match(second) if first.startswith(b"#!/bin/sh") else None
    interpreter = long["python"].strip(b'"') if long else first.removeprefix(b"#!").strip()
    words = (
        interpreter.decode(errors="replace").split()
        if not long
        else [interpreter.decode(errors="replace")]
    )
    if len(words) > 1 and Path(words[0]).name == "env":
        words = words[1:]
    if not (first.startswith(b"#!") and words and _INTERPRETER.fullmatch(Path(words[0]).name)):
        raise SpecError(
            f"{str(script)!r} is not a Python program; give a Python file, -m MODULE, or a Python "
            "entry point"
        )
    return _find_interpreter(words[0])


def put_before(environment: dict[str, str], name: str, value: str) -> None:
    """Puts a value in front of a list variable."""
    value_before = environment.get(name)
    environment[name] = f"{value}:{value_before}" if value_before else value
