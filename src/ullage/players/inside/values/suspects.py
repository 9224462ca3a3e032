"""Finds out whether a program may have failed because of a value that no kernel computed.

A read is suspect if a line of the traceback made it, or else if it was the last read in a function
of the traceback.
"""

from __future__ import annotations

from types import TracebackType

from ullage.players.inside.owners.source_location import HostReads, ShapeReads, is_users
from ullage.players.inside.values.assume import Assumed, Plausibility

_OTHER_CAUSES = (OSError, ImportError, MemoryError, SyntaxError)


def suspicions(
    error: BaseException,
    reads: HostReads,
    shapes: ShapeReads,
    assumed: Assumed | None,
) -> list[str]:
    """Returns a sentence with the read and the option to change for each suspect read.

    assumed: the assumptions of the run; None: values were not followed at all.
    """
    if isinstance(error, _OTHER_CAUSES):
        return []
    frames = _users_frames(error.__traceback__)
    for line in frames:
        for where, answer in reads.answers.items():
            if where is not None and _is_at(where, line):
                return [_sentence(where, answer, _values_switch(assumed))]
        for what, where, assumption in shapes.rows:
            if where is not None and _is_at(where, line):
                return [_sentence(where, f"{what}: {assumption}", "--assume nonzero=none")]
    for line in frames:
        file, _, function = _parts(line)
        for where, answer in reversed(reads.answers.items()):
            if where is not None and _parts(where)[::2] == (file, function):
                return [_sentence(where, answer, _values_switch(assumed))]
    return []


def _sentence(where: str, answer: str, switch: str) -> str:
    answers = answer or "several values"
    return (
        f"{where} read a value that no kernel computed (answered as {answers}); if the failure "
        f"follows from it, try {switch}"
    )


def _values_switch(assumed: Assumed | None) -> str:
    if assumed is None:
        return "without --values off"
    is_plausible = assumed.values is Plausibility.PLAUSIBLE
    return "--assume values=zeros" if is_plausible else "--assume values=plausible"


def _users_frames(traceback: TracebackType | None) -> list[str]:
    """The frames of the user's own code, the innermost first."""
    frames = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_users(code.co_filename):
            name = code.co_filename.rpartition("/")[2]
            frames.append(f"{name}:{traceback.tb_lineno} in {code.co_name}")
        traceback = traceback.tb_next
    return frames[::-1]


def _is_at(where: str, frame: str) -> bool:
    return where == frame or where.startswith(f"{frame} (")


def _parts(place: str) -> tuple[str, str, str]:
    """The file, the line and the function of "train.py:31 in main (library)"."""
    file, _, rest = place.partition(":")
    line, _, function = rest.partition(" in ")
    return file, line, function.partition(" (")[0]
