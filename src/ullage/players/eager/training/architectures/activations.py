"""Activation functions by the names that configurations give them (ACT2FN of transformers)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ullage.facts.families.config import Config
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.tensor import Tensor


def _fused(x: Tensor) -> Tensor:
    """gelu, silu, gelu_pytorch_tanh: one kernel, that saves its input."""
    return F.elementwise(x)


def _relu(x: Tensor) -> Tensor:
    return F.elementwise(x, saves_input=False, saves_output=True)


def _relu2(x: Tensor) -> Tensor:
    """ReLUSquaredActivation."""
    return F.pow2(_relu(x))


def _gelu_new(x: Tensor) -> Tensor:
    """NewGELUActivation: 0.5 * x * (1 + tanh(c * (x + 0.044715 * x ** 3))), step by step."""
    half = F.scale(x)
    inner = F.scale(F.add(x, F.scale(F.pow2(x))))
    bounded = F.elementwise(inner, saves_input=False, saves_output=True)
    del inner
    return F.mul(half, F.shift(bounded))


_ACTIVATIONS: Final = {
    "gelu": _fused,
    "gelu_new": _gelu_new,
    "gelu_pytorch_tanh": _fused,
    "relu": _relu,
    "relu2": _relu2,
    "silu": _fused,
}


def find_activation(config: Config, *names: str, default: str) -> Callable[[Tensor], Tensor]:
    """The function that one of these fields names.

    Raises:
        SpecError: ullage does not know it.
    """
    name = config.text(*names, default=default)
    if name not in _ACTIVATIONS:
        raise config.wrong(names[0], f"found {name!r}, expected {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]
