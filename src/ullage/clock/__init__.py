"""How long kernels take on a GPU, as intervals of seconds, from published measurements.

>>> from ullage.clock import MatrixProduct, matrix_product
>>> from ullage.facts.gpus import find_gpu
>>> time = matrix_product(find_gpu("h100"), MatrixProduct(4096, 4096, 4096), "bfloat16")
>>> time.low_s < time.s < time.high_s
True

The tables take numpy, which is loaded with the first name that needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ullage.clock.duration import Duration
    from ullage.clock.kernels import (
        attention_decode,
        attention_forward,
        collective,
        matrix_product,
        memory_bound,
    )
    from ullage.clock.work import Attention, Collective, Kind, MatrixProduct

__all__ = [
    "Attention",
    "Collective",
    "Duration",
    "Kind",
    "MatrixProduct",
    "attention_decode",
    "attention_forward",
    "collective",
    "matrix_product",
    "memory_bound",
]

_HOMES: Final = {
    "Duration": "duration",
    **dict.fromkeys(("Attention", "Collective", "Kind", "MatrixProduct"), "work"),
}


def __getattr__(name: str) -> object:
    """Loads a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_HOMES.get(name, 'kernels')}")
    value = globals()[name] = getattr(module, name)
    return value
