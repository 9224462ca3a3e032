"""The losses of a run: processes without a record, processes cut short, files not kept."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace

from ullage.explain.program import Program
from ullage.log.model import ExitKind, ProgramExit, Record

_MAX_SIGNAL = 64
_MINUTE_S = 60


def find_losses(program: Program) -> tuple[str, ...]:
    """Warnings about what is missing from the report of a run."""
    warnings = list(program.not_kept)
    # One that ended well is judged by that.
    if program.exit_code and program.plan is not None and not program.plan.is_applied:
        warnings.append(program.plan.failure)
    for _pid, text in program.left_running:
        warnings.append(f"the program left {text} running; it was ended")
    for pid, why in program.unrecorded:
        if pid != program.pid:  # the verdict is about that one
            warnings.append(
                f"process {pid} used the GPU and left no record{_because(why)}: its memory is not "
                "counted"
            )
    return tuple(warnings)


def find_gap(program: Program, records: Sequence[Record]) -> str | None:
    """Why a program that ended well cannot be judged all the same; None: it can be."""
    unrecorded = dict(program.unrecorded)
    if program.pid in unrecorded:
        why = unrecorded[program.pid] or "it left without Python's own end"
        return f"the program used the GPU and left no record of it ({why})"
    used = unrecorded.keys() | {record.pid for record in records}
    cut_short = [pid for pid, _ in program.left_running if pid in used]
    if cut_short:
        return (
            f"the program ended, and process {cut_short[0]} that it had started was still using "
            "the GPU"
        )
    # A process without a peak only looked at the GPU.
    if unrecorded and not any(each.peak_allocated_bytes for one in records for each in one.devices):
        return f"process {min(unrecorded)} used the GPU and left no record of it"
    if program.left_running and not records:
        return "the program ended before the processes that it had started"
    return None


def describe_end(program: Program, *, has_record: bool, is_child_recorded: bool = False) -> str:
    """How a program that raised nothing failed, and whether what it used is known.

    has_record: whether it left a record itself.
    is_child_recorded: whether a process that it started did.
    """
    number = program.exit_code - 128
    if 0 < number <= _MAX_SIGNAL:
        name = " (SIGKILL, by ullage)" if program.was_killed else _name(number)
        how = f"was ended by signal {number}{name}"
    else:
        how = f"exited with code {program.exit_code}"
    if has_record:
        return f"the program {how}"
    unrecorded = dict(program.unrecorded)
    if program.pid in unrecorded:
        why = _because(unrecorded[program.pid])
        return f"the program {how}; it left no record of its use of the GPU{why}"
    if is_child_recorded:
        return f"the program {how}; the processes that it started used the GPU"
    return f"the program {how} before it used the GPU"


def describe_timeout(timeout_s: float) -> str:
    """That a program was ended for the time it took, and what to do."""
    minutes = f" ({timeout_s / 60:g} min)" if timeout_s >= _MINUTE_S else ""
    return (
        f"the program was ended: it had not come to its end after {timeout_s:g} s{minutes}; give "
        "it a larger timeout, or fewer steps"
    )


def settle_exit(record: Record, program: Program) -> Record:
    """The program's own record with the exit that only its parent saw."""
    if record.pid != program.pid or record.exit.kind is not ExitKind.RETURNED:
        return record
    if program.exit_code == 0:
        return record
    return replace(
        record, exit=ProgramExit(ExitKind.SYSTEM_EXIT, None, None, None, program.exit_code)
    )


def _because(why: str) -> str:
    return f" ({why})" if why else ""


def _name(number: int) -> str:
    if number == signal.SIGKILL:
        return " (SIGKILL, which the system sends when host memory runs out)"
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:  # a real-time signal
        return ""
