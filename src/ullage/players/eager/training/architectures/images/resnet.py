"""ResNet as in timm (torchvision's needs the same memory)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ullage.facts.families.config import Config
from ullage.players.eager.training.architectures.model import Model, images, labels, parameter_dtype
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.convolution import Conv
from ullage.players.eager.training.eager.images import average, max_pool, relu_
from ullage.players.eager.training.eager.module import Linear, Module, Stack
from ullage.players.eager.training.eager.norms import BatchNorm
from ullage.players.eager.training.eager.tensor import DType, Tensor
from ullage.players.eager.training.recipe import Recipe

_BLOCKS: Final = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
_WIDTHS: Final = (64, 128, 256, 512)
_BASIC: Final = ("resnet18", "resnet34")  # the others have bottlenecks


class NormedConv(Module):
    """A convolution without bias, followed by batch norm."""

    def __init__(
        self, arena: Arena, inputs: int, outputs: int, size: int, dtype: DType, *, stride: int = 1
    ) -> None:
        self.conv = Conv(
            arena, inputs, outputs, size, dtype, stride=stride, padding=size // 2, has_bias=False
        )
        self.norm = BatchNorm(arena, outputs, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class Block(Module):
    """BasicBlock (two convolutions) or Bottleneck (three)."""

    def __init__(
        self, arena: Arena, kind: tuple[int, int, int], dtype: DType, *, is_basic: bool
    ) -> None:
        """kind: input channels, width, stride."""
        inputs, width, stride = kind
        outputs = width if is_basic else 4 * width
        sizes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        if is_basic:
            sizes = [(inputs, width, 3, stride), (width, width, 3, 1)]
        self.convs = [
            NormedConv(arena, inputs, other, size, dtype, stride=step)
            for inputs, other, size, step in sizes
        ]
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = NormedConv(arena, inputs, outputs, 1, dtype, stride=stride)

    def __call__(self, x: Tensor) -> Tensor:
        shortcut = x
        for conv in self.convs[:-1]:
            x = relu_(conv(x))
        x = self.convs[-1](x)
        if self.downsample is not None:
            shortcut = self.downsample(shortcut)
        return relu_(F.add(x, shortcut, in_place=True))


class ResNet(Model):
    """A classifier; its loss is cross_entropy(model(images), labels)."""

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        dtype = parameter_dtype(recipe)
        is_basic = config.model_type in _BASIC
        growth = 1 if is_basic else 4
        kinds = list(_list_blocks(_BLOCKS[config.model_type], growth))
        self.stem = NormedConv(arena, 3, _WIDTHS[0], 7, dtype, stride=2)
        self.blocks = Stack(
            arena,
            "blocks",
            len(kinds),
            lambda kind: Block(arena, kind, dtype, is_basic=is_basic),
            kinds=kinds,
        )
        classes = config.number("num_classes", default=1000)
        self.fc = Linear(arena, growth * _WIDTHS[-1], classes, dtype, has_bias=True)
        self.stacks = (self.blocks,)

    def inputs(self, arena: Arena, recipe: Recipe) -> tuple[Tensor, ...]:
        return images(arena, recipe), labels(arena, recipe)

    def __call__(self, *inputs: Tensor) -> Tensor:
        x, targets = inputs
        x = max_pool(relu_(self.stem(x)), 3, 2, 1)
        return F.cross_entropy(self.fc(average(self.blocks(x))), targets)


def _list_blocks(counts: Sequence[int], growth: int) -> Iterator[tuple[int, int, int]]:
    """Yields the input channels, the width and the stride of each block."""
    inputs = _WIDTHS[0]
    for stage, (count, width) in enumerate(zip(counts, _WIDTHS, strict=True)):
        for place in range(count):
            yield inputs, width, 2 if stage and not place else 1
            inputs = growth * width
