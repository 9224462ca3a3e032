"""The program of a scenario that replays requests against a function: calls it with each.

    python -m ullage.players.inside.requests.calls serve.py:handle FILE USERS LIMIT  (0: none)

The function gets the object of a line. It may be one of asyncio's, whose users are tasks of one
loop, and it may give an iterator, which is read to its end. What it gives is let go before the
request counts as answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ullage.ground.protocol.variables import RUN_DIR
from ullage.players.inside import library
from ullage.players.inside.requests.concurrent_callers import Users, pass_on
from ullage.players.inside.requests.requests import Noted, Request, in_parts, note, read_requests


def main(words: Sequence[str]) -> None:
    """Loads the function, and calls it for each request.

    Raises:
        SystemExit: there is no such function.
        BaseException: what the function raised, as the program's own.
    """
    name, file, users, limit = words
    function = load(name)
    requests = read_requests(Path(file), int(limit) or None)
    notes = _Notes(Path(os.environ[RUN_DIR]))
    try:
        if _is_asynchronous(function):
            asyncio.run(_answer_in_tasks(function, requests, int(users), notes))
        else:
            _answer_in_threads(function, requests, int(users), notes)
    finally:
        notes.end()


def load(name: str) -> Callable[..., Any]:
    """The function of "serve.py:handle" or "package.serve:handle".

    Raises:
        SystemExit: there is none.
    """
    source, _, path = name.rpartition(":")
    value: Any = _load_file(source) if source.endswith(".py") else importlib.import_module(source)
    sys.argv = [source]
    for part in path.split("."):
        if not hasattr(value, part):
            close = get_close_matches(part, dir(value), n=1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise SystemExit(f"ullage: {source} has no {part!r}{meant}")
        value = getattr(value, part)
    if not callable(value):
        raise SystemExit(f"ullage: {name} is {value!r}; name a function of one argument")
    function: Callable[..., Any] = value
    return function


def _load_file(path: str) -> Any:
    """The module of a file, whose own directory comes first, as for a program."""
    file = Path(path).absolute()
    sys.path[0:1] = [str(file.parent)]
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise SystemExit(f"ullage: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def _is_asynchronous(function: Callable[..., Any]) -> bool:
    """True if it is one of asyncio's, or an object that is called like one."""
    return any(
        inspect.iscoroutinefunction(callable_) or inspect.isasyncgenfunction(callable_)
        for callable_ in (function, type(function).__call__)
    )


def _call(function: Callable[..., Any], request: Request) -> None:
    result = function(dict(request.body))
    if inspect.isawaitable(result):
        raise TypeError("the function gives something to be awaited, and is not an async function")
    if isinstance(result, Generator):
        for _ in result:
            pass_on()


def _answer_in_threads(
    function: Callable[..., Any], requests: Sequence[Request], users: int, notes: _Notes
) -> None:
    def answer(request: Request) -> None:
        with notes.around(request):
            _call(function, request)

    if users == 1:
        for request in requests:
            answer(request)
    else:
        Users(users, requests, answer).run()


async def _answer_in_tasks(
    function: Callable[..., Any], requests: Sequence[Request], users: int, notes: _Notes
) -> None:
    """As many tasks at once as there are users; asyncio's order of them is the same each time."""

    async def answer(request: Request) -> None:
        with notes.around(request):
            result = function(dict(request.body))
            if isinstance(result, AsyncGenerator):
                async for _ in result:
                    pass
            else:
                await result

    for part in in_parts(requests, users):
        left = iter(part)

        async def use(left: Any = left) -> None:
            for request in left:
                await answer(request)

        tasks = [asyncio.ensure_future(use()) for _ in range(users)]
        await asyncio.gather(*tasks)


class _Notes:
    """Notes of each request where it began and ended, and why it failed."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._begun: dict[str, int] = {}

    @contextlib.contextmanager
    def around(self, request: Request) -> Iterator[None]:
        """While this lasts, a request is answered."""
        self._begun[request.where] = library.position()
        failure, is_out_of_memory = "", False
        try:
            yield
        except asyncio.CancelledError:  # for another one that failed
            raise
        except BaseException as error:
            failure = f"{type(error).__name__}: {error}".partition("\n")[0]
            is_out_of_memory = "out of memory" in str(error).lower()
            raise
        finally:
            self._note(request.where, failure, is_out_of_memory=is_out_of_memory)

    def end(self) -> None:
        """Notes those that were still being answered when another one failed."""
        for where in tuple(self._begun):
            self._note(where, "", is_out_of_memory=False)

    def _note(self, where: str, failure: str, *, is_out_of_memory: bool) -> None:
        pid = os.getpid()
        ends = {pid: self._begun.pop(where)}, {pid: library.position()}
        note(self._run_dir, Noted(where, *ends, failure, is_out_of_memory))


if __name__ == "__main__":
    main(sys.argv[1:])
