"""What is known of an operation, and of the inputs of one call of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ullage.record.values.uniform_tensors import Number


@dataclass(frozen=True, slots=True)
class Schema:
    """Whether an operation draws random numbers, the arguments it writes, (position, name), and its
    name as the rules have it.
    """

    is_random: bool
    written: tuple[tuple[int, str], ...]
    base_name: str


class Known:
    """What is known of an operation's inputs.

    Attributes:
        inputs: CPU copies of those whose bytes are known, by id of the device tensor.
        raw: their address, bytes and mark.
        missing: the others.
        numbers: of each of those, by id, what all its elements are assumed to be.
        assumed: ids of the inputs whose bytes are assumed.
        is_complete: whether bytes of all of them are known.
    """

    def __init__(self) -> None:
        self.inputs: dict[int, Any] = {}
        self.raw: list[tuple[int, bytearray, int]] = []
        self.missing: list[Any] = []
        self.numbers: dict[int, Number] = {}
        self.is_complete = True
        self.assumed: set[int] = set()

    @property
    def is_assumed(self) -> bool:
        """Whether bytes of the inputs are assumed."""
        return bool(self.assumed)
