"""Rows are data: one test checks every row of a table, and names each row that fails.

A case of its own for each row would spend most of its time in pytest. Example:

    @each("gpu", load_catalog(), name=lambda gpu: gpu.slug)
    def test_slugs_are_plain(gpu: Gpu) -> None:
        assert re.fullmatch("[a-z0-9-]+", gpu.slug)
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

MOST_NAMED = 15
_MESSAGE = 300  # characters; that of a dict that differs may have thousands


def each(
    names: str | tuple[str, ...], rows: Iterable[Any], *, name: Callable[..., str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes one test of a check of one row.

    names: the parameters of the check that a row fills: one, or several where a row is a tuple.
    name: what a row is called, from its values; without it, the values themselves.

    The check's other parameters are fixtures. All rows share them, so a check that changes one
    needs a case for each row: `pytest.mark.parametrize`.
    """
    keys = (names,) if isinstance(names, str) else names
    table = [(row,) if isinstance(names, str) else tuple(row) for row in rows]
    assert table, "a check without rows holds nothing"

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(check)
        def test(**fixtures: Any) -> None:
            failures: list[tuple[str, BaseException]] = []
            for row in table:
                called = name(*row) if name else _shown(keys, row)
                try:
                    check(**dict(zip(keys, row, strict=True)), **fixtures)
                except pytest.skip.Exception as skip:
                    # It would skip the rows that follow, and hide those that failed.
                    message = f"{called}: a row cannot skip ({skip}); leave it out of the table"
                    raise AssertionError(message) from None
                except (Exception, pytest.fail.Exception) as error:
                    failures.append((called, error))
            if len(failures) == 1:
                ((called, error),) = failures
                error.add_note(f"the row: {called}; the other {len(table) - 1} hold")
                __tracebackhide__ = True  # of all frames, the check's own says what is wrong
                raise error
            if failures:
                lines = [f"{called}: {_told(error, check)}" for called, error in failures]
                rest = len(lines) - MOST_NAMED
                more = [f"and {rest} more"] * (rest > 0)
                head = f"{len(lines)} of {len(table)} rows fail:"
                pytest.fail("\n  ".join([head, *lines[:MOST_NAMED], *more]), pytrace=False)

        signature = inspect.signature(check)
        fixtures = [value for key, value in signature.parameters.items() if key not in keys]
        # pytest reads here which fixtures a test takes.
        test.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return test

    return decorate


def _shown(keys: tuple[str, ...], row: tuple[Any, ...]) -> str:
    texts = (f"{key}={value!r}" for key, value in zip(keys, row, strict=True))
    return ", ".join(text if len(text) <= 60 else f"{text[:60]}..." for text in texts)


def _told(error: BaseException, check: Callable[..., None]) -> str:
    """The line of the check that failed, and what it says, values included, as one line."""
    file = check.__code__.co_filename
    frames = traceback.walk_tb(error.__traceback__)
    (*_, line) = (number for frame, number in frames if frame.f_code.co_filename == file)
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    message = " ".join(str(error).split()) or "it says nothing"
    return f"{Path(file).name}:{line}: {kind}{message}"[:_MESSAGE]
