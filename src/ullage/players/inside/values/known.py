"""The schema of an operation, and the known inputs of a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ullage.players.inside.values.uniform_tensors import Number


@dataclass(frozen=True, slots=True)
class Schema:
    """The properties of an operation: whether it draws random numbers, the arguments that it writes
    as (position, name), its name in the rules, and the positions of its single tensors.
    """

    is_random: bool
    written: tuple[tuple[int, str], ...]
    base_name: str
    tensors: tuple[int, ...]


class Known:
    """The known and the assumed inputs of an operation.

    Attributes:
        inputs: CPU copies of the known inputs, by the id of the device tensor.
        raw: the address, bytes and mark of each known input.
        missing: the inputs with unknown bytes.
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
        """True if bytes of the inputs are assumed."""
        return bool(self.assumed)
