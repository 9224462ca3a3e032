"""Documents in the trace event format, for ui.perfetto.dev and chrome://tracing: memory over time,
and the last step of a run.

    with path.open("w", encoding="utf-8") as out:
        write_trace_events(out, pages)
    Path("step.json").write_text(render_timeline(report))

Source: "Trace Event Format" of the Chromium project, the JSON object form: counters (C), complete
events (X), instants (i) and metadata (M), times in microseconds.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TextIO, TypeAlias

import numpy as np

from ullage.clock.step_time import Span, StepTime
from ullage.explain.moments.course import Course, Phase
from ullage.explain.moments.step_levels import step_levels, timed_device
from ullage.explain.moments.steps import PHASE_NAMES
from ullage.explain.run import Process, RunReport
from ullage.ground.errors import SnapshotError
from ullage.ground.units import format_bytes
from ullage.log.blocks import held_before
from ullage.log.model import Category
from ullage.log.snapshot import Action, Int64Array
from ullage.verbs.page.payload import SnapshotPage
from ullage.verbs.views.palette import CATEGORY_LOOKS

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


_STEPS, _PHASES = 1, 2  # the threads that show them, each in a row


def write_trace_events(out: TextIO, pages: Sequence[SnapshotPage]) -> None:
    """Writes each device as a process. If the file has no times, an event takes 1 us."""
    write_events(out, (event for page in pages for event in _events(page)))


def _events(page: SnapshotPage) -> Iterator[Event]:
    times = page.snapshot.events_of(page.device).time_us
    times = times if times.any() else np.arange(page.replay.num_events)
    # A value is valid from its event on; the first one is from before the trace.
    moments = np.concatenate([times[:1], times]) if len(times) else np.zeros(1, np.int64)
    yield name_event("process_name", f"device {page.device} of {page.title}", pid=page.device)
    if page.course is not None and len(times):
        yield from _stretches(page.course, moments, page.device)
    for name, level in _counters(page):
        changes = np.flatnonzero(np.diff(level, prepend=-1))
        for ts, value in zip(moments[changes].tolist(), level[changes].tolist(), strict=True):
            yield {"name": name, "ph": "C", "ts": ts, "pid": page.device, "args": {"bytes": value}}
    events = page.snapshot.events_of(page.device)
    for number in np.flatnonzero(events.action == Action.OOM).tolist():
        request = format_bytes(int(events.size_bytes[number]))
        yield {"name": f"out of memory: no room for {request}", "ph": "i", "s": "p",
               "ts": int(times[number]), "pid": page.device, "tid": _STEPS}  # fmt: skip


def _stretches(course: Course, moments: Int64Array, device: int) -> Iterator[Event]:
    """Steps and their phases, each from its first event to the first event of the next."""
    last = len(moments) - 1
    if course.num_steps:
        yield name_event("thread_name", f"steps, {course.source.value}", pid=device, tid=_STEPS)
    ends = course.step_ends.tolist()
    for step, (begin, end) in enumerate(zip([0, *ends][:-1], ends, strict=True)):
        yield _stretch(f"step {step}", moments, (begin, min(end, last)), device, _STEPS)
    if not course.has_phases:
        return
    yield name_event("thread_name", "phases", pid=device, tid=_PHASES)
    begins = course.begin.tolist()
    rows = zip(begins, [*begins, last][1:], course.phase.tolist(), strict=True)
    for begin, end, code in rows:
        name = PHASE_NAMES.get(Phase(code))
        if name is not None:
            yield _stretch(name, moments, (max(begin, 0), min(end, last)), device, _PHASES)


def _stretch(
    name: str, moments: Int64Array, between: tuple[int, int], device: int, row: int
) -> Event:
    begin, end = (int(moments[place]) for place in between)
    return {"name": name, "ph": "X", "ts": begin, "dur": end - begin, "pid": device, "tid": row}


def _counters(page: SnapshotPage) -> Iterator[tuple[str, Int64Array]]:
    levels, blocks = page.levels, page.replay.blocks
    yield "reserved", levels.reserved_bytes
    yield "live", levels.allocated_bytes
    requested = replace(blocks, size_bytes=blocks.requested_bytes)
    yield "requested", held_before(requested, page.replay.num_events)
    if page.category is None:
        return
    for code, category in enumerate(Category):
        mine = page.category == code
        if mine.any():
            label = CATEGORY_LOOKS[category].label
            yield f"live: {label}", held_before(blocks, page.replay.num_events, mine)


def render_timeline(report: RunReport) -> str:
    """The document of a report: a process for each that was timed.

    Raises:
        SnapshotError: none was.
    """
    if report.time is None:
        raise SnapshotError("no step was timed: none ended")
    out = io.StringIO()
    write_events(
        out,
        (
            event
            for process in report.processes
            if process.time is not None
            for event in _step_events(process, process.time)
        ),
    )
    return out.getvalue()


def _step_events(process: Process, time: StepTime) -> Iterator[Event]:
    record = process.record
    pid = record.pid
    which = f"process {record.pid}" if record.rank is None else f"rank {record.rank}"
    device = timed_device(record, time)
    yield name_event("process_name", f"{which}, device {device}, last step", pid=pid)
    for stream in sorted({span.stream for span in time.spans}):
        name = "host waits" if stream < 0 else f"stream {stream}"
        yield name_event("thread_name", name, pid=pid, tid=stream + 1)
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
        "tid": span.stream + 1,
        "args": {"part": span.part, "module": span.module, "allocator events": span.position},
    }


def _microseconds(seconds: float) -> float:
    """To the nanosecond."""
    return round(seconds * 1e6, 3)
