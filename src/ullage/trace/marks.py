"""The marks of a record, and where `--steps` ended the program, read from plain values."""

from __future__ import annotations

from ullage.trace import field_checks
from ullage.trace.field_checks import Index
from ullage.trace.model import Mark, MarkKind
from ullage.trace.record_schema import ROWS


def parse_mark(value: object) -> Mark:
    """A mark from its row: position, kind, and what else is known of it.

    Raises:
        SnapshotError: it is damaged.
    """
    position, kind_text, payload = field_checks.row(value, len(ROWS["marks"]), "marks")
    kind = field_checks.read(MarkKind, kind_text, "marks")
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
            inputs=field_checks.read(
                tuple[tuple[Index, ...], ...], payload.get("inputs", ()), "inputs"
            ),
            num_tokens=None if tokens is None else field_checks.whole(tokens, "marks"),
            has_failed=payload.get("failed") is True,
            has_autocast=payload.get("autocast") is True,
        )
    index = payload if kind is MarkKind.STEP and isinstance(payload, int) else None
    return Mark(place, kind, index=index)
