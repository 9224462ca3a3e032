"""Which functions and classes are the program's own, and which global names its code uses.

Libraries are not looked into: their globals are caches, and what they keep of a training is reached
through the objects that the program has.
"""

from __future__ import annotations

import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import torch

_LIBRARIES = tuple(
    f"{folder}/"
    for folder in (
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        Path(torch.__file__).parent,
        Path(__file__).parents[3],
    )
)


@cache
def is_library_file(path: str | None) -> bool:
    """True if a file is of Python, PyTorch, ullage, or an installed package."""
    return path is None or path.startswith(("<frozen", *_LIBRARIES))


@cache
def is_library(module: str) -> bool:
    """True if a module, by its name, is of a library; the program's own main module has no file
    where it was typed in.
    """
    if module == "__main__":
        return False
    loaded = sys.modules.get(module)
    return loaded is not None and is_library_file(getattr(loaded, "__file__", None))


def is_own_class(kind: type) -> bool:
    """True if a class is the program's own."""
    return not is_library(str(kind.__module__))


@cache
def names_of(code: CodeType) -> frozenset[str]:
    """The names of globals and attributes that a code and the functions within it use."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return frozenset(code.co_names).union(*map(names_of, inner))


def slots_of(kind: type) -> list[Any]:
    """The descriptors of the slots of a class and its bases."""
    return [
        descriptor
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for descriptor in vars(base).values()
        if type(descriptor).__name__ == "member_descriptor"
    ]
