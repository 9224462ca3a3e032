"""Where in the code an allocation was made: the frames of a stack that say most to its reader.

The *site* is the innermost frame that is not of torch or Python itself: the line that needed the
memory. The *caller* is the innermost frame of the user's own code: the line that the user can
change. Often they are the same. In a stack without Python frames, as backward has on its own
thread, the operator says most.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ullage.trace.snapshot import Stacks, UInt8Array, UInt32Array

UNKNOWN_SITE = "no stack was recorded"

# Frames of torch's own Python, of the interpreter, and of C++ (which have no Python file).
_TORCH = re.compile(r"(^|/)torch/|(^|/)torch$|(^|/)modules/module\.py$")
_LIBRARY = re.compile(r"(^|/)(site-packages|dist-packages)/")
_PYTHON = re.compile(
    r"(^|/)lib/python3(\.\d+)?/(?!site-packages|dist-packages)|^<frozen|(^|/)runpy\.py$|"
    r"(^|/)(contextlib|functools|threading|weakref|copy)\.py$"
)
_NO_FILE = frozenset({"", "??", ":0", "<string>", "<stdin>"})
_COMPILED = (".cpp", ".cc", ".cu", ".c", ".h", ".hpp", ".o", ".so", ".S")
# The recorder of ullage calls torch's operations itself.
_ULLAGE = re.compile(r"(^|/)ullage/(record|phantom)/|(^|/)torch/_ops\.py$")
_KEPT_PARTS = 2
OPERATOR = re.compile(r"\bat::_ops::(\w+)::")
_BACKWARD = re.compile(r"\btorch::autograd::generated::(\w+Backward\w*?)\d*::apply")
_USERS, _LIBRARYS, _CPP, _WATCHING = 0, 1, 4, 5


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
        frame = int(frames[np.argmin(np.maximum(rank, _LIBRARYS))])
        is_told = rank.min() < _CPP
        name = describe_frame(stacks, frame) if is_told else _describe_cpp(stacks, stack)
        of_stack[stack] = numbers.setdefault(name, len(numbers))
        if rank.min() == _USERS:
            own = describe_frame(stacks, int(frames[np.argmin(rank)]))
            caller[stack] = numbers.setdefault(own, len(numbers))
    return Sites(tuple(numbers), of_stack, caller, call)


def rank_frames(stacks: Stacks) -> UInt8Array:
    """Ranks each frame, the most useful first: 0 the user's code, 1 a library, 2 torch, 3 Python,
    4 C++, 5 the recorder."""
    return np.array([_rank(file) for file in stacks.frames.file], dtype=np.uint8)


def has_python_file(file: str) -> bool:
    """Whether a frame's file is a Python file."""
    return file not in _NO_FILE and not file.endswith(_COMPILED)


def describe_frame(stacks: Stacks, frame: int) -> str:
    """Describes a frame: the last parts of its path, the line and the function."""
    frames = stacks.frames
    parts = frames.file[frame].split("/")
    path = "/".join(parts[-_KEPT_PARTS:]) if len(parts) > 1 else parts[0]
    where = f"{path}:{frames.line[frame]}" if path not in _NO_FILE else ""
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
    if _ULLAGE.search(file):
        return _WATCHING
    if _TORCH.search(file):
        return 2
    if _LIBRARY.search(file):
        return _LIBRARYS
    return 3 if _PYTHON.search(file) else _USERS
