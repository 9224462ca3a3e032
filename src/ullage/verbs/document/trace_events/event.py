"""The trace event format: what all its documents share.

Source: "Trace Event Format" of the Chromium project, the JSON object form: counters (C), complete
events (X), instants (i) and metadata (M), times in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TextIO, TypeAlias

Event: TypeAlias = dict[str, Any]


def write_events(out: TextIO, events: Iterable[Event]) -> None:
    """Writes a document of the events, one in a line."""
    out.write('{"displayTimeUnit":"ms","traceEvents":[\n')
    separator = ""
    for event in events:
        out.write(separator + json.dumps(event, separators=(",", ":")))
        separator = ",\n"
    out.write("\n]}\n")


def name_event(kind: str, name: str, **where: int) -> Event:
    """The name of a process or a thread; `kind` is "process_name" or "thread_name"."""
    return {"name": kind, "ph": "M", **where, "args": {"name": name}}
