"""The work of a step as a watched process wrote it down, and the modules that it was done for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ullage.trace import field_checks
from ullage.trace.field_checks import Index


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

    module: Index
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

    module: Index
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
        field_checks.parse_rows(
            work, "rows", lambda row: field_checks.parse_row(Operation, row, "work")
        ),
        field_checks.parse_rows(
            work, "tree", lambda row: field_checks.parse_row(Node, row, "work")
        ),
    )
