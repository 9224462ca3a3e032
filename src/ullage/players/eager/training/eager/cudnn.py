"""How much scratch memory cuDNN's convolutions ask for.

The library chooses its kernels by closed rules; this is the phantom's model of what the kernels
have to keep (players/phantom/csrc/answers/cudnn_workspace.c, where each rule has its cause).
Each answer has a low and a high end.
"""

from __future__ import annotations

from enum import Enum
from math import prod
from typing import Final, NamedTuple

from ullage.players.eager.term import Interval
from ullage.players.eager.training.eager.dtype import FLOAT32, DType
from ullage.players.eager.training.eager.machine import Machine

_TILE: Final = 128  # rows and columns of a product that one block of threads makes
_LEAST_SLICE: Final = 256  # of the sum: below, a split costs more than it brings
_VECTOR_BYTES: Final = 16
_FIRST_IN_PLACE: Final = 8  # compute capability
_WINOGRAD_FILTER: Final = 16  # floats of a transformed 3 x 3 filter, tiles of 4 x 4
_WINOGRAD_TILE: Final = 36  # floats of a tile of 6 x 6


class Direction(Enum):
    """The computed tensor: the response, the image's gradient, or the filter's."""

    FORWARD = "forward"
    BACKWARD_DATA = "backward data"
    BACKWARD_FILTER = "backward filter"


class Convolution(NamedTuple):
    """The shapes of one convolution, as (batch or outputs, channels, sizes...).

    Attributes:
        filter: (outputs, channels of one group, sizes...).
        has_unit_strides: neither strides nor dilation.
        is_channels_last: all three are laid out so.
    """

    image: tuple[int, ...]
    filter: tuple[int, ...]
    response: tuple[int, ...]
    dtype: DType
    has_unit_strides: bool
    is_channels_last: bool = False

    @property
    def num_groups(self) -> int:
        """Groups of channels that do not see each other."""
        return self.image[1] // self.filter[1]

    @property
    def vector_channels(self) -> int:
        """Channels that fill 16 bytes."""
        return _VECTOR_BYTES // self.dtype.itemsize

    @property
    def is_product(self) -> bool:
        """A matrix product for each image, whose rows of whole vectors are read where they lie."""
        row_bytes = prod(self.response[2:]) * self.dtype.itemsize
        is_one_place = prod(self.filter[2:]) == 1 and self.response[2:] == self.image[2:]
        is_plain = self.has_unit_strides and self.num_groups == 1 and not self.is_channels_last
        return is_one_place and is_plain and row_bytes % _VECTOR_BYTES == 0

    @property
    def suits_winograd(self) -> bool:
        """3 x 3 without strides, dilation or groups."""
        return self.filter[2:] == (3, 3) and self.has_unit_strides and self.num_groups == 1


def convolution_scratch(
    machine: Machine, direction: Direction, convolution: Convolution
) -> Interval:
    """The workspace that cuDNN asks for to compute one direction of a convolution.

    Counts: copies in another layout, transformed tiles, and sums that blocks of threads share.
    Ignores: kernels that cudnn.benchmark finds.
    Error: between its two ends; not compared with a GPU here.
    Source: players/phantom/csrc/answers/cudnn_workspace.c, where each rule has its cause.
    """
    least = 8 if convolution.dtype.name in ("float32", "bfloat16") else 7
    if machine.capability[0] >= least:
        return _on_tensor_cores(machine, direction, convolution)
    return _on_plain_cores(direction, convolution)


def _on_tensor_cores(machine: Machine, direction: Direction, convolution: Convolution) -> Interval:
    sizes = convolution.image, convolution.filter, convolution.response
    image, filters, response = (_layout_copy(convolution, shape) for shape in sizes)
    packed = [prod(shape) * convolution.dtype.itemsize for shape in sizes]
    if direction is Direction.FORWARD:
        inputs, output, rounded = image + filters, response, packed[0] + packed[1]
    elif direction is Direction.BACKWARD_DATA:
        inputs, output, rounded = response + filters, image, packed[2] + packed[1]
    else:
        inputs, output, rounded = image + response, filters, packed[0] + packed[2]
    is_tf32 = convolution.dtype is FLOAT32
    split = _split_bytes(machine, direction, convolution)
    likely = inputs + output
    high = (max(inputs, rounded) if is_tf32 else inputs) + output + split
    if is_tf32 and direction is Direction.FORWARD:
        likely = inputs
    if direction is Direction.BACKWARD_FILTER:
        likely = inputs + (split or output)
    if convolution.filter[1] < convolution.vector_channels and convolution.num_groups > 1:
        likely = 0
    if convolution.is_product and machine.capability[0] >= _FIRST_IN_PLACE:
        is_sum = direction is Direction.BACKWARD_FILTER  # of a result for each image
        likely = min(likely, convolution.image[0] * prod(convolution.filter) * 4 * is_sum)
    if convolution.suits_winograd and not (
        convolution.is_channels_last or convolution.image[1] == 1
    ):
        high = max(high, _winograd_bytes(convolution))
    return Interval(0, likely, high)


def _on_plain_cores(direction: Direction, convolution: Convolution) -> Interval:
    is_filter = direction is Direction.BACKWARD_FILTER
    if convolution.suits_winograd:
        transformed = _WINOGRAD_FILTER * convolution.filter[0] * convolution.filter[1] * 4
        return Interval(
            0, 0 if is_filter else transformed, max(transformed, _winograd_bytes(convolution))
        )
    taps = prod(convolution.filter[2:])
    offsets = 0 if is_filter else convolution.filter[1] * taps * 4
    columns = (
        convolution.image[1] * taps * prod(convolution.response[2:]) * convolution.dtype.itemsize
    )
    return Interval(0, offsets, max(offsets, columns))


def _layout_copy(convolution: Convolution, shape: tuple[int, ...]) -> int:
    """The channels-last, padded copy; where the sizes are 1, the channels are last anyway."""
    channels = -(-shape[1] // convolution.vector_channels) * convolution.vector_channels
    is_last = convolution.is_channels_last or channels == 1 or prod(shape[2:]) == 1
    if is_last and shape[1] == channels:
        return 0
    return shape[0] * channels * prod(shape[2:]) * convolution.dtype.itemsize


def _split_bytes(machine: Machine, direction: Direction, convolution: Convolution) -> int:
    """Float partial results, where the output has fewer tiles than there are multiprocessors."""
    groups, taps = convolution.num_groups, prod(convolution.filter[2:])
    outputs, inputs = convolution.filter[0] // groups, convolution.filter[1]
    responses = convolution.response[0] * prod(convolution.response[2:])
    images = convolution.image[0] * prod(convolution.image[2:])
    rows, columns, depth = {
        Direction.FORWARD: (responses, outputs, inputs * taps),
        Direction.BACKWARD_DATA: (images, inputs, outputs * taps),
        Direction.BACKWARD_FILTER: (outputs, inputs * taps, responses),
    }[direction]
    tiles = groups * -(-rows // _TILE) * -(-columns // _TILE)
    slices = min(machine.multiprocessors // tiles, depth // _LEAST_SLICE)
    return 0 if slices < 2 else slices * groups * rows * columns * 4


def _winograd_bytes(convolution: Convolution) -> int:
    """Image, filter and response in tiles of 6 x 6 floats."""
    tiles = convolution.response[0] * prod(-(-size // 4) for size in convolution.response[2:])
    inputs, outputs = convolution.filter[1], convolution.filter[0]
    return _WINOGRAD_TILE * (tiles * (inputs + outputs) + inputs * outputs) * 4
