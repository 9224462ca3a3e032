"""Where in the code an allocation was made: the frames of a stack that say most to its reader.

The *site* is the line that needed the memory: the innermost frame that is not of torch, of Python
itself or of a library that only helps, such as einops. A library whose lines call torch's modules,
such as transformers, holds models, and its lines are told. The *caller* is the innermost frame of
the user's own code: the line that the user can change. Often they are the same. In a stack without
Python frames, as backward has on its own thread, the operator says most.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

import numpy as np

from ullage.log.snapshot import Stacks, UInt8Array, UInt32Array

UNKNOWN_SITE = "no stack was recorded"

# Frames of torch's own Python, of the interpreter, and of C++ (which have no Python file). What
# Inductor generates has a hash for its name.
_TORCH = re.compile(
    r"(^|/)torch/|(^|/)torch$|(^|/)modules/module\.py$|(^|/)[a-z2-7]{2}/c[a-z2-7]{51}\.py$"
)
# Installed code: packages, also in a wheel or an egg that is run as it is, and what pip checks out
# into an environment. What is installed to be edited lies in the user's own directories.
_LIBRARY = re.compile(
    r"(?:^|/)(?:(?:site|dist)-packages|[^/]+\.(?:whl|egg)|(?:\.?v?env|envs/[^/]+)/src)/([^/]+)",
    re.IGNORECASE,
)
_PYTHON = re.compile(
    r"(^|/)lib(64)?/python3(\.\d+t?)?/|(^|/)python3\d+\.zip/|^<frozen|(^|/)runpy\.py$|"
    r"(^|/)(contextlib|functools|threading|weakref|copy)\.py$"
)
# Windows has Python's own modules right in Lib, which conda writes small.
_WINDOWS_PYTHON = re.compile(r"^(?:[A-Za-z]:/(?:.*/)?[Ll]ib|(?:.*/)?Lib)/(\w+)(?:\.py$|/)")
# Modules of torch, which call those of whoever holds models.
_MODULE = re.compile(r"(^|/)modules/\w+\.py$")
# Code that a program generates, and files of it that were gone at the end of the run: no line of it
# can be opened. What is typed into a session is the user's.
_GENERATED = re.compile(r"<(?!ipython-input|python-input|input>|console>|frozen )")
# A name that Python's tempfile has drawn: the last parts of such a path do not say where a file is.
_TEMPORARY = re.compile(r".*/tmp[a-z0-9_]{8}(/|\w*\.py$)")
_NO_FILE = frozenset({"", "??", ":0", "<string>", "<stdin>"})
_COMPILED = re.compile(r"\.(cpp|cc|cu|c|h|hpp|o|S|so(\.\d+)*)$")
# The recorder of ullage calls torch's operations itself.
ULLAGE_FRAME = re.compile(r"(^|/)ullage/players/|(^|/)torch/_ops\.py$")
_KEPT_PARTS = 2
OPERATOR = re.compile(r"\bat::_ops::(\w+)::")
_BACKWARD = re.compile(r"\btorch::autograd::generated::(\w+Backward\w*?)\d*::apply")
_USERS, _LIBRARYS, _TORCHS, _PYTHONS, _CPP, _WATCHING = range(6)


@dataclass(frozen=True, slots=True)
class Sites:
    """The site of every stack.

    Attributes:
        names: each site once, such as "train.py:31 in main"; name 0 is UNKNOWN_SITE.
        of_stack: (num_stacks,) numbers of names.
        caller: (num_stacks,) numbers of names: the user's own line; 0 if there is none.
        call: (num_stacks,) equal for stacks with equal frames, because a file may repeat a stack.
    """

    names: tuple[str, ...]
    of_stack: UInt32Array
    caller: UInt32Array
    call: UInt32Array


def find_sites(stacks: Stacks) -> Sites:
    """Finds the site of every stack of a snapshot."""
    ranks = rank_frames(stacks)
    tells = _rank_sites(stacks, ranks)
    numbers: dict[str, int] = {UNKNOWN_SITE: 0}
    of_stack = np.zeros(len(stacks), dtype=np.uint32)
    caller = np.zeros(len(stacks), dtype=np.uint32)
    call, calls = np.zeros(len(stacks), dtype=np.uint32), dict[bytes, int]()
    for stack in range(len(stacks)):
        frames = stacks.frame[stacks.start[stack] : stacks.start[stack + 1]]
        call[stack] = calls.setdefault(frames.tobytes(), len(calls))
        frames = frames[ranks[frames] != _WATCHING]
        if not len(frames):
            continue
        rank = ranks[frames]  # argmin takes the first, which is the innermost
        frame = int(frames[np.argmin(tells[frames])])
        is_told = rank.min() < _CPP
        name = describe_frame(stacks, frame) if is_told else _describe_cpp(stacks, stack)
        of_stack[stack] = numbers.setdefault(name, len(numbers))
        if rank.min() == _USERS:
            own = describe_frame(stacks, int(frames[np.argmin(rank)]))
            caller[stack] = numbers.setdefault(own, len(numbers))
    return Sites(tuple(numbers), of_stack, caller, call)


def _rank_sites(stacks: Stacks, ranks: UInt8Array) -> UInt8Array:
    """How little each frame says of where memory was needed: as `rank_frames`, but 0 also for the
    libraries that hold models: in some stack they stand outside of a module of torch.
    """
    files = stacks.frames.file
    is_module = np.array([_MODULE.search(file) is not None for file in files], dtype=np.bool_)
    is_module &= ranks == _TORCHS
    matches = [_LIBRARY.search(file) for file in files]
    names = ["" if match is None else match[1] for match in matches]
    known = {name: number for number, name in enumerate(dict.fromkeys(names))}
    package = np.array([known[name] for name in names], dtype=np.int64)
    holds = np.zeros(len(known), dtype=np.bool_)
    for stack in range(len(stacks)):
        frames = stacks.frame[stacks.start[stack] : stacks.start[stack + 1]]
        inside = is_module[frames]
        if inside.any():
            holds[package[frames[int(inside.argmax()) :]]] = True
    is_told = (ranks == _LIBRARYS) & holds[package] & (package != known.get("", -1))
    return np.where(is_told, np.uint8(_USERS), ranks)


def rank_frames(stacks: Stacks) -> UInt8Array:
    """Ranks each frame, the most useful first: 0 the user's code, 1 a library or generated code,
    2 torch, 3 Python, 4 C++, 5 the recorder.
    """
    return np.array([_rank(file) for file in stacks.frames.file], dtype=np.uint8)


def has_python_file(file: str) -> bool:
    """True if a frame's file is a Python file."""
    return file not in _NO_FILE and _COMPILED.search(file) is None


def describe_frame(stacks: Stacks, frame: int) -> str:
    """Describes a frame: the last parts of its path, the line and the function; what was estimated
    has classes for files, and no lines.
    """
    frames = stacks.frames
    path = frames.file[frame]
    if not _TEMPORARY.match(path):
        path = "/".join(path.split("/")[-_KEPT_PARTS:])
    line = int(frames.line[frame])
    where = "" if path in _NO_FILE else f"{path}:{line}" if line else path
    function = frames.function[frame]
    return f"{where} in {function}" if where and function else where or function


def _describe_cpp(stacks: Stacks, stack: int) -> str:
    """Describes a stack of C++ frames alone: the operator, and the graph node that called it."""
    names = [stacks.frames.function[n] for n in
             stacks.frame[stacks.start[stack] : stacks.start[stack + 1]]]  # fmt: skip
    operator = next((match[1] for name in names if (match := OPERATOR.search(name))), "")
    node = next((match[1] for name in names if (match := _BACKWARD.search(name))), "")
    if node:
        return f"{operator or 'an operation'} in backward ({node})"
    return f"{operator}, called from C++" if operator else names[0][:60]


def _rank(file: str) -> int:
    if not has_python_file(file):
        return _CPP
    if ULLAGE_FRAME.search(file):
        return _WATCHING
    if _TORCH.search(file):
        return _TORCHS
    if _LIBRARY.search(file) or _GENERATED.match(file):
        return _LIBRARYS
    windows = _WINDOWS_PYTHON.search(file)
    is_windows = windows is not None and windows[1] in sys.stdlib_module_names
    return _PYTHONS if is_windows or _PYTHON.search(file) else _USERS
