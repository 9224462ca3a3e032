"""The work of a step as a watched process wrote it down, and the modules that it was done for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ullage.trace import field_checks


class Operation(NamedTuple):
    """Equal operations of the last whole step.

    Attributes:
        module: an index into the record's `modules`; -1: done for none.
        part: of the step: "forward" (with all that is neither of the others), "backward",
            "optimizer".
        name: such as "aten::mm".
        precision: of the numbers: "fp32", "tf32", "bfloat16", "float16", ...
        flops: of one of them.
        num_bytes: that one of them reads and writes in the device's memory.
        link_bytes: that one of them moves between host and device.
        peer_bytes: that one of them sends to other ranks.
        host_bytes: that one of them reads and writes in the host's memory, in the optimizer's step.
        num_launches: kernels of one of them.
        num: how many there were.
    """

    module: int
    part: str
    name: str
    precision: str
    flops: int
    num_bytes: int
    link_bytes: int
    peer_bytes: int
    host_bytes: int
    num_launches: int
    num: int


class Node(NamedTuple):
    """A module: an index into the record's `modules`, its class, the class of what holds it, and
    how many parameters and children it has.
    """

    module: int
    kind: str
    held_by: str
    num_parameters: int
    num_children: int


@dataclass(frozen=True, slots=True)
class Work:
    """The work of the last whole step, and the tree of modules."""

    operations: tuple[Operation, ...]
    tree: tuple[Node, ...]


def parse_work(fields: Mapping[str, Any]) -> Work | None:
    """The work in a record; None where the run did not record it.

    Raises:
        SnapshotError: it is damaged.
    """
    if "work" not in fields:
        return None
    work = field_checks.typed(fields["work"], dict, "work")
    return Work(
        field_checks.parse_rows(work, "rows", lambda row: Operation(*_parse(row, Operation))),
        field_checks.parse_rows(work, "tree", lambda row: Node(*_parse(row, Node))),
    )


def _parse(row: object, kind: type[Operation] | type[Node]) -> list[Any]:
    kinds = {"part": str, "name": str, "precision": str, "kind": str, "held_by": str}
    values = field_checks.row(row, len(kind._fields), "work")
    return [
        field_checks.typed(value, kinds.get(name, int), "work")
        for name, value in zip(kind._fields, values, strict=True)
    ]
