"""Tracebacks as they would be without ullage."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

from ullage.players.inside.owners.source_location import OPS, is_ours


def clean_tracebacks(error: BaseException) -> None:
    """Takes ullage out of what will be shown of an exception and of its causes."""
    pending: list[BaseException | None] = [error]
    visited: set[int] = set()
    while pending:
        exception = pending.pop()
        if exception is None or id(exception) in visited:
            continue
        visited.add(id(exception))
        exception.__traceback__ = _without_ours(exception.__traceback__)
        pending += [exception.__cause__, exception.__context__]


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback as it would be without ullage: frames of its hooks taken out."""
    traceback_types: list[TracebackType] = []
    was_ours = False
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        # An operation that ullage passes on is called by way of torch._ops, not straight from C++.
        was_ours = is_ours(filename) or (was_ours and filename.endswith(OPS))
        if not was_ours:
            traceback_types.append(traceback)
        traceback = traceback.tb_next
    if not traceback_types:
        return None
    for traceback_type, following in zip(
        traceback_types, [*traceback_types[1:], None], strict=True
    ):
        traceback_type.tb_next = following
    return traceback_types[0]


def show_clean_tracebacks(note: Callable[[BaseException], None] | None = None) -> None:
    """From now on an uncaught exception is shown as it would be without ullage.

    note: is called with it before.
    """
    show = sys.excepthook

    def clean_and_show(
        kind: type[BaseException], error: BaseException, _traceback: TracebackType | None
    ) -> None:
        if note is not None:
            note(error)
        clean_tracebacks(error)
        show(kind, error, error.__traceback__)

    sys.excepthook = clean_and_show
