"""Which PyTorch trains: its number, and the GPUs that its wheels have code for."""

from __future__ import annotations

import re
from typing import Final

from ullage.ground.errors import SpecError

NEWEST: Final = (2, 15)
# (first version, least capability): what the wheels of PyPI are built for; 2.15's own list is
# sm_75, 80, 86, 90, 100 and 120. Source: RELEASE.md of pytorch/pytorch, and _cuda_getArchFlags().
_LEAST: Final = (((2, 11), (7, 5)), ((2, 8), (7, 0)), ((1, 0), (5, 0)))
# (capability, first version): before it there was no code that runs on such a GPU.
_FIRST: Final = (((10, 0), (2, 7)), ((9, 0), (1, 13)), ((8, 0), (1, 7)))


def parse_torch(text: str) -> tuple[int, int]:
    """(major, minor) of a version such as "2.4" or "2.4.1+cu121".

    Raises:
        SpecError: it is not a version, or one that is not known yet.
    """
    match = re.match(r"(\d+)\.(\d+)(?![\d])", text)
    if match is None:
        raise SpecError(f"torch: found {text!r}, expected a version such as 2.4")
    version = int(match[1]), int(match[2])
    if not (1, 0) <= version <= NEWEST:
        raise SpecError(f"torch: found {text!r}, expected from 1.0 to {_name(NEWEST)}")
    return version


def has_code(torch: tuple[int, int], capability: tuple[int, int]) -> bool:
    """True if the wheels of a version run on GPUs of a compute capability."""
    least = next(bound for first, bound in _LEAST if torch >= first)
    earliest = next((first for bound, first in _FIRST if capability >= bound), (1, 0))
    return capability >= least and torch >= earliest


def choose_torch(text: str | None, capability: tuple[int, int] | None) -> tuple[int, int]:
    """The version that was said, or the newest one that has code for a GPU.

    Raises:
        SpecError: the version that was said has none.
    """
    if text is not None:
        torch = parse_torch(text)
        if capability is not None and not has_code(torch, capability):
            raise SpecError(
                f"torch: found {text}, whose wheels have no code for compute capability "
                f"{_name(capability)}; take {_name(_newest(capability))}"
            )
        return torch
    return NEWEST if capability is None else _newest(capability)


def _newest(capability: tuple[int, int]) -> tuple[int, int]:
    versions = [(2, minor) for minor in range(NEWEST[1], -1, -1)]
    return next(version for version in versions if has_code(version, capability))


def _name(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"
