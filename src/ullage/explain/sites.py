"""Where in the code an allocation was made: the frame of a stack that says most to its reader.

The innermost frame of the user's own code; where a stack has none, the innermost that is not of
torch or Python itself; else the innermost at all. C++ frames are passed over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ullage.trace.snapshot import Stacks, UInt8Array, UInt32Array

UNKNOWN_SITE = "no stack was recorded"

# Frames of torch's own Python, of the interpreter, and of C++ (which have no Python file).
_TORCH = re.compile(r"(^|/)torch/|(^|/)torch$")
_LIBRARY = re.compile(r"(^|/)(site-packages|dist-packages)/")
_PYTHON = re.compile(
    r"(^|/)lib/python3(\.\d+)?/(?!site-packages|dist-packages)|^<frozen|(^|/)runpy\.py$|"
    r"(^|/)(contextlib|functools|threading|weakref|copy)\.py$"
)
_NO_FILE = frozenset({"", "??", ":0", "<string>", "<stdin>"})
_COMPILED = (".cpp", ".cc", ".cu", ".c", ".h", ".hpp", ".o", ".so", ".S")
# What watches a run that ullage records calls torch's operations itself.
_ULLAGE = re.compile(r"(^|/)ullage/record/")
_KEPT_PARTS = 2


@dataclass(frozen=True, slots=True)
class Sites:
    """The site of every stack.

    Attributes:
        names: every different site once, such as "train.py:31 in main"; name 0 is UNKNOWN_SITE.
        of_stack: (num_stacks,) numbers of names.
    """

    names: tuple[str, ...]
    of_stack: UInt32Array


def find_sites(stacks: Stacks) -> Sites:
    """The site of every stack of a snapshot."""
    ranks = rank_frames(stacks)
    numbers: dict[str, int] = {UNKNOWN_SITE: 0}
    of_stack = np.zeros(len(stacks), dtype=np.uint32)
    for stack in range(len(stacks)):
        frames = stacks.frame[stacks.start[stack] : stacks.start[stack + 1]]
        if not len(frames):
            continue
        best = frames[np.argmin(ranks[frames])]  # argmin takes the first, which is the innermost
        name = describe_frame(stacks, int(best))
        of_stack[stack] = numbers.setdefault(name, len(numbers))
    return Sites(tuple(numbers), of_stack)


def rank_frames(stacks: Stacks) -> UInt8Array:
    """How little each frame says: 0 the user's code, 1 a library, 2 torch, 3 Python, 4 C++."""
    return np.array([_rank(file) for file in stacks.frames.file], dtype=np.uint8)


def describe_frame(stacks: Stacks, frame: int) -> str:
    """A frame in words: the last parts of its path, line and function."""
    frames = stacks.frames
    parts = frames.file[frame].split("/")
    path = "/".join(parts[-_KEPT_PARTS:]) if len(parts) > 1 else parts[0]
    where = f"{path}:{frames.line[frame]}" if path not in _NO_FILE else ""
    function = frames.function[frame]
    return f"{where} in {function}" if where and function else where or function


def _rank(file: str) -> int:
    if file in _NO_FILE or file.endswith(_COMPILED):
        return 4
    if _ULLAGE.search(file):
        return 3
    if _TORCH.search(file):
        return 2
    if _LIBRARY.search(file):
        return 1
    return 3 if _PYTHON.search(file) else 0
