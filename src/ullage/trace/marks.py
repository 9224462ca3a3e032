"""The marks of a record, and where `--steps` ended the program, read from plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ullage.trace import check
from ullage.trace.model import Mark, MarkKind, StepKind, Stop
from ullage.trace.record_schema import ROWS


def parse_mark(value: object) -> Mark:
    """A mark from its row: position, kind, and what else is known of it.

    Raises:
        SnapshotError: it is damaged.
    """
    position, kind_text, payload = check.row(value, len(ROWS["marks"]), "marks")
    kind = check.choice(MarkKind, kind_text, "marks")
    place = check.position(position, "marks")
    if kind is MarkKind.FORWARD_BEGIN and isinstance(payload, dict):
        mode, module = payload.get("training"), payload.get("module")
        return Mark(
            place,
            kind,
            grad=bool(payload.get("grad", True)),
            is_training_mode=None if mode is None else bool(mode),
            module=None if module is None else check.whole(module, "marks"),
        )
    if kind is MarkKind.FORWARD_END and isinstance(payload, dict):
        return Mark(place, kind, inputs=check.parse_rows(payload, "inputs", _parse_shape))
    index = payload if kind is MarkKind.STEP and isinstance(payload, int) else None
    return Mark(place, kind, index=index)


def parse_stop(fields: Mapping[str, Any]) -> Stop | None:
    """After which steps the program was ended; None: it was not."""
    if fields.get("steps") is None:
        return None
    steps = check.typed(fields["steps"], dict, "exit.steps")
    kind = check.choice(StepKind, steps.get("kind"), "exit.steps.kind")
    return Stop(check.size(steps, "count"), kind)


def _parse_shape(value: object) -> tuple[int, ...]:
    sizes = check.typed(value, list, "marks")
    return tuple(check.whole(size, "marks") for size in sizes)
