"""The last step of a run in the trace event format, for ui.perfetto.dev and chrome://tracing: the
work of each stream by the likely times, and the memory that is in use.

    Path("step.json").write_text(render_timeline(report))
"""

from __future__ import annotations

import io
from collections.abc import Iterator

from ullage.clock.step_time import Span, StepTime
from ullage.explain.moments.step_levels import step_levels, timed_device
from ullage.explain.run import Process, RunReport
from ullage.ground.errors import SnapshotError
from ullage.verbs.document.trace_events.event import Event, name_event, write_events

_HOST_ROW = 0  # the thread of the host's waits, above the streams


def render_timeline(report: RunReport) -> str:
    """The document of a report: a process for each that was timed.

    Raises:
        SnapshotError: none was.
    """
    if report.time is None:
        raise SnapshotError("no step was timed: none ended")
    out = io.StringIO()
    write_events(out, _all_events(report))
    return out.getvalue()


def _all_events(report: RunReport) -> Iterator[Event]:
    for process in report.processes:
        if process.time is not None:
            yield from _events(process, process.time)


def _events(process: Process, time: StepTime) -> Iterator[Event]:
    record = process.record
    pid = record.pid
    which = f"process {record.pid}" if record.rank is None else f"rank {record.rank}"
    device = timed_device(record, time)
    yield name_event("process_name", f"{which}, device {device}, last step", pid=pid)
    for stream in sorted({span.stream for span in time.spans}):
        name = "host waits" if stream < 0 else f"stream {stream}"
        yield name_event("thread_name", name, pid=pid, tid=_row(stream))
    yield from (_span_event(span, pid) for span in time.spans)
    levels = step_levels(record, time)
    for start_s, allocated_bytes, reserved_bytes in zip(
        levels.start_s.tolist(),
        levels.allocated_bytes.tolist(),
        levels.reserved_bytes.tolist(),
        strict=True,
    ):
        at = {"ph": "C", "ts": _microseconds(start_s), "pid": pid}
        yield {"name": "live", **at, "args": {"bytes": allocated_bytes}}
        yield {"name": "reserved", **at, "args": {"bytes": reserved_bytes}}


def _row(stream: int) -> int:
    return _HOST_ROW if stream < 0 else stream + 1


def _span_event(span: Span, pid: int) -> Event:
    # The end is rounded, not the duration: then work that follows does not seem to be nested in it.
    begin, end = _microseconds(span.start_s), _microseconds(span.start_s + span.duration_s)
    return {
        "name": span.name,
        "cat": span.category,
        "ph": "X",
        "ts": begin,
        "dur": round(end - begin, 3),
        "pid": pid,
        "tid": _row(span.stream),
        "args": {"part": span.part, "module": span.module, "allocator events": span.position},
    }


def _microseconds(seconds: float) -> float:
    """To the nanosecond."""
    return round(seconds * 1e6, 3)
