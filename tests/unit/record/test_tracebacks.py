"""What a user sees of an exception is as it would be without ullage."""

from __future__ import annotations

import traceback
from types import TracebackType

import pytest

from ullage.players.inside.process import tracebacks
from ullage.players.inside.process.tracebacks import clean_tracebacks


def raised() -> ValueError:
    """An exception with a traceback of this file's."""
    try:
        raise ValueError("the program's own")
    except ValueError as error:
        return error


def frames(trace: TracebackType | None) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(trace)]


@pytest.mark.parametrize("is_ours", [True, False])
def test_an_exception_of_our_frames_alone_is_cleaned_without_another(
    monkeypatch: pytest.MonkeyPatch,
    is_ours: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    monkeypatch.setattr(tracebacks, "is_ours", lambda _file: is_ours)
    error = raised()
    clean_tracebacks(error)
    assert frames(error.__traceback__) == ([] if is_ours else ["raised"])


def test_an_exception_that_was_never_raised_is_left_alone() -> None:
    error = ValueError()
    clean_tracebacks(error)
    assert error.__traceback__ is None
