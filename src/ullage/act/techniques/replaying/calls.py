"""The arguments of a recorded call, copied to the CPU and made smaller: fewer rows of the batch,
fewer positions.

    small = Smaller.of(arguments, num_rows=2, length=16)
    arguments, keywords = small.draw(arguments, dtype, seed)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ullage.act.techniques.replaying.twin import CannotReplayError, known_values

# Words in the names of arguments that are masks, and of arguments that are tokens.
_MASKS = ("mask",)
_TOKENS = ("input_ids", "labels", "idx", "token", "target", "x")
_IMAGE = 64


@dataclass(frozen=True, slots=True)
class Smaller:
    """The sizes of the arguments, before and after.

    Attributes:
        rows: rows of the batch, before and after.
        length: positions, before and after.
        side: the side of images, before and after.
        num_tokens: token ids below this number are valid for every embedding.
    """

    rows: tuple[int, int]
    length: tuple[int, int]
    side: tuple[int, int]
    num_tokens: int

    @classmethod
    def of(cls, call: Any, *, num_rows: int, length: int | None, num_tokens: int) -> Smaller:
        """The smaller sizes for a call.

        Args:
            call: its arguments.
            num_rows: the largest number of rows.
            length: the largest length of sequences; None: unchanged.
            num_tokens: token ids below this number are valid.
        """
        inputs = list(tensors(call))
        rows = next((tensor.shape[0] for tensor in inputs if tensor.dim()), 1)
        lengths = [
            tensor.shape[1]
            for tensor in inputs
            if (tensor.dim() == 2 and not tensor.is_floating_point()) or tensor.dim() == 3
        ]
        sides = [tensor.shape[-1] for tensor in inputs if tensor.dim() == 4]
        positions, side = next(iter(lengths), 0), next(iter(sides), 0)
        to = positions if length is None else min(positions, length)
        to_side = side if length is None else min(side, _IMAGE)
        return cls((rows, min(rows, num_rows)), (positions, to), (side, to_side), num_tokens)

    @property
    def text(self) -> str:
        """For people."""
        sizes = [f"batch {self.rows[1]}"]
        if self.length[0]:
            sizes.append(f"length {self.length[1]}")
        if self.side[0]:
            sizes.append(f"images of {self.side[1]}")
        return ", ".join(sizes)

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """The smaller shape of a tensor."""
        sizes = list(tensor.shape)
        if sizes and sizes[0] == self.rows[0]:
            sizes[0] = self.rows[1]
        is_image = tensor.dim() == 4 and self.side[0]
        before, after = self.side if is_image else self.length
        last = len(sizes)
        if tensor.is_floating_point() and not is_image and last > 2 and sizes[-2] != before:
            last -= 1  # features that happen to have the same size
        for place in range(1, last):
            if before and sizes[place] == before:
                sizes[place] = after
        return tuple(sizes)

    def draw(self, call: Any, dtype: Any, seed: int) -> Any:
        """The smaller arguments, with random numbers."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        return mapped(call, lambda tensor, name: self._drawn(tensor, name, dtype, generator))

    def _drawn(self, tensor: Any, name: str, dtype: Any, generator: Any) -> Any:
        import torch

        shape = self.shape(tensor)
        known = known_values(tensor, dtype)[tuple(slice(size) for size in shape)].clone()
        is_mask = any(word in name for word in _MASKS) or tensor.dtype is torch.bool
        if tensor.is_floating_point():
            if (is_mask and known.any()) or not bool(known.isfinite().all()):
                return known
            noise = torch.empty(shape, dtype=dtype, device="cpu").normal_(generator=generator)
            return noise.requires_grad_(tensor.requires_grad and tensor.is_leaf)
        if is_mask:
            return known if known.any() else torch.ones_like(known)
        is_token = not name or any(word in name for word in _TOKENS)
        if (not known.any() and is_token) or bool((known >= self.num_tokens).any()):
            return torch.randint(
                0, max(self.num_tokens, 1), shape, generator=generator, dtype=tensor.dtype
            )
        return known


def tensors(value: Any) -> Iterator[Any]:
    """All tensors in arguments."""
    leaves: list[Any] = []
    mapped(value, lambda tensor, _: leaves.append(tensor))
    return iter(leaves)


def mapped(value: Any, change: Any, name: str = "") -> Any:
    """Arguments of the same structure with other tensors.

    Raises:
        CannotReplayError: the arguments contain an object of an unsupported class.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return change(value, name)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(element, change, name) for element in value))
    if isinstance(value, list | tuple):
        return type(value)(mapped(element, change, name) for element in value)
    if isinstance(value, dict):
        entries = {key: mapped(element, change, str(key)) for key, element in value.items()}
        return entries if type(value) is dict else _like(value, entries)
    if value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device):
        return value
    if hasattr(value, "data") and isinstance(value.data, dict):  # transformers' BatchEncoding
        return mapped(dict(value.data), change, name)
    raise CannotReplayError(f"it is called with a {type(value).__name__}, which is not copied")


def _like(mapping: Any, entries: dict[Any, Any]) -> Any:
    try:
        return type(mapping)(entries)
    except TypeError:
        return entries
