"""The marks of a record, and where `--steps` ended the program, read from plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ullage.trace import field_checks
from ullage.trace.model import Mark, MarkKind, StepKind, Stop
from ullage.trace.record_schema import ROWS


def parse_mark(value: object) -> Mark:
    """A mark from its row: position, kind, and what else is known of it.

    Raises:
        SnapshotError: it is damaged.
    """
    position, kind_text, payload = field_checks.row(value, len(ROWS["marks"]), "marks")
    kind = field_checks.choice(MarkKind, kind_text, "marks")
    place = field_checks.position(position, "marks")
    if kind is MarkKind.FORWARD_BEGIN and isinstance(payload, dict):
        mode, module = payload.get("training"), payload.get("module")
        return Mark(
            place,
            kind,
            grad=bool(payload.get("grad", True)),
            is_training_mode=None if mode is None else bool(mode),
            module=None if module is None else field_checks.whole(module, "marks"),
        )
    if kind is MarkKind.FORWARD_END and isinstance(payload, dict):
        tokens = payload.get("tokens")
        return Mark(
            place,
            kind,
            inputs=field_checks.parse_rows(payload, "inputs", _parse_shape),
            num_tokens=None if tokens is None else field_checks.whole(tokens, "marks"),
            has_failed=payload.get("failed") is True,
            has_autocast=payload.get("autocast") is True,
        )
    index = payload if kind is MarkKind.STEP and isinstance(payload, int) else None
    return Mark(place, kind, index=index)


def parse_stop(fields: Mapping[str, Any]) -> Stop | None:
    """After which steps the program was ended; None: it was not."""
    if fields.get("steps") is None:
        return None
    steps = field_checks.typed(fields["steps"], dict, "exit.steps")
    kind = field_checks.choice(StepKind, steps.get("kind"), "exit.steps.kind")
    return Stop(field_checks.size(steps, "count"), kind)


def _parse_shape(value: object) -> tuple[int, ...]:
    sizes = field_checks.typed(value, list, "marks")
    return tuple(field_checks.whole(size, "marks") for size in sizes)
