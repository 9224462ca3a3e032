"""The tensors that optimizers keep for each parameter: their states on the device.

Each has the form of its library: the same tensors in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Final

from ullage.estimate.training.eager.dtype import FLOAT32, UINT8, DType
from ullage.estimate.training.eager.tensor import Tensor, empty
from ullage.trace.category import Category


def _state(
    parameter: Tensor, shape: Sequence[int] | None = None, dtype: DType | None = None
) -> Tensor:
    return empty(
        parameter.arena,
        parameter.shape if shape is None else shape,
        dtype or parameter.dtype,
        Category.OPTIMIZER_STATE,
    )


def states_like(count: int) -> Callable[[Tensor], list[Tensor]]:
    """`count` states like the parameter; the number of steps is on the CPU and takes nothing."""
    return lambda parameter: [_state(parameter) for _ in range(count)]


def fused_states(parameter: Tensor) -> list[Tensor]:
    """Two moments, and the number of steps on the device."""
    return [_state(parameter, (), FLOAT32), _state(parameter), _state(parameter)]


def factored_states(parameter: Tensor) -> list[Tensor]:
    """torch.optim.Adafactor: a row and a column, in the gradient's dtype; vectors in full."""
    shape = parameter.shape
    if len(shape) < 2:
        return [_state(parameter)]
    return [_state(parameter, (*shape[:-1], 1)), _state(parameter, (*shape[:-2], 1, shape[-1]))]


def factored_float32_states(parameter: Tensor) -> list[Tensor]:
    """transformers.Adafactor: the same in float32, and the parameter's RMS on the device."""
    shape, dtype = parameter.shape, FLOAT32
    rms = _state(parameter, (), dtype)
    if len(shape) < 2:
        return [_state(parameter, shape, dtype), rms]
    row, column = shape[:-1], (*shape[:-2], shape[-1])
    return [_state(parameter, row, dtype), _state(parameter, column, dtype), rms]


_SMALLEST_8BIT: Final = 4096
_BLOCK_8BIT: Final = 256
_SMALLEST_PAGED: Final = 100_000
TABLE_BYTES: Final = 1024  # 256 values in float32


def bytewise_states(parameter: Tensor) -> list[Tensor]:
    """bitsandbytes: a byte each and a float32 for each block; small ones in float32."""
    if parameter.numel < _SMALLEST_8BIT:
        return wide_states(parameter)
    blocks = (ceil(parameter.numel / _BLOCK_8BIT),)
    states = [_state(parameter, dtype=UINT8) for _ in range(2)]
    return states + [_state(parameter, blocks, FLOAT32) for _ in range(2)]


def paged_states(parameter: Tensor) -> list[Tensor]:
    """The same; large ones lie in managed memory, which the driver pages in and out."""
    states = bytewise_states(parameter)
    return states[2:] if parameter.numel >= _SMALLEST_PAGED else states


def wide_states(parameter: Tensor) -> list[Tensor]:
    """bitsandbytes in 32 bits: two in float32."""
    return [_state(parameter, dtype=FLOAT32) for _ in range(2)]


def paged_wide_states(parameter: Tensor) -> list[Tensor]:
    """The same; large ones lie in managed memory."""
    return [] if parameter.numel >= _SMALLEST_PAGED else wide_states(parameter)


def torchao_states(parameter: Tensor) -> list[Tensor]:
    """torchao: a byte each, a float32 for each block, a table; others like the parameter."""
    count = parameter.numel
    if count < _SMALLEST_8BIT or count % _BLOCK_8BIT:
        return [_state(parameter) for _ in range(2)]
    states = []
    for _ in range(2):
        states.append(_state(parameter, dtype=UINT8))
        states.append(_state(parameter, (count // _BLOCK_8BIT,), FLOAT32))
        states.append(_state(parameter, (TABLE_BYTES,), UINT8))
    return states
