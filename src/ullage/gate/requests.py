"""The table `requests` of a scenario: a file of requests, and the function or server that answers
them.

    [scenario.chat.requests]
    file = "requests.jsonl"
    function = "serve.py:handle"        # or url = "http://127.0.0.1:{port}/v1/completions"
    concurrency = 8

    read_replay(section)                # None where a scenario has no such table
    check_replay(case, section)         # what can be known to be wrong before anything runs
"""

from __future__ import annotations

import ast
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ullage.configuration.sections import Section
from ullage.errors import SpecError
from ullage.gate.scenario import PORT_NAME, Case, Replay, variables_in
from ullage.parsing import read_bounded
from ullage.phantom.http_requests import PORT, Endpoint, check_request
from ullage.record.requests.requests import Request, in_parts, read_requests
from ullage.trace.growth import MIN_STEPS

REQUESTS = "requests"
_FUNCTION = re.compile(r"(?P<source>.+\.py|[\w.]+):(?P<name>\w+(\.\w+)*)")
_SERVER_ONLY = ("ready", "ready_timeout_s", "timeout_s", "body")
_DEFAULT_TIMEOUT_S = 300


def read_replay(section: Section) -> Replay | None:
    """What the table says."""
    if REQUESTS not in section.names:
        return None
    inner = section.inner(REQUESTS)
    keys = set(inner.names)
    function, url = inner.text("function", "serve.py:handle"), inner.text("url", _EXAMPLE_URL)
    if (function is None) == (url is None):
        raise inner.error(
            "function",
            'or url says who answers, and one of them is needed: function = "serve.py:handle", or '
            f'url = "{_EXAMPLE_URL}" of the server that the command starts',
        )
    for key in _SERVER_ONLY:
        if url is None and key in keys:
            raise inner.error(key, "is for a server, and a function is called; leave it out")
    file = inner.text("file", "requests.jsonl")
    if file is None:
        raise inner.error("file", 'is missing; add it, for example: file = "requests.jsonl"')
    users = inner.size("concurrency")
    replay = Replay(
        file=file,
        users="1" if users is None else str(users),
        limit=inner.number("limit", 1),
        function=function,
        url=url,
        ready=_ready(inner),
        ready_timeout_s=inner.number("ready_timeout_s", 1) or _DEFAULT_TIMEOUT_S,
        timeout_s=inner.number("timeout_s", 1) or _DEFAULT_TIMEOUT_S,
        fields=_fields(inner),
    )
    inner.refuse_rest()
    return replay


_EXAMPLE_URL = f"http://127.0.0.1:{PORT}/v1/completions"


def _ready(inner: Section) -> str | None:
    path = inner.text("ready", "/health")
    if path is not None and not path.startswith("/"):
        raise inner.error("ready", f'is {path!r}; expected a path of the server, such as "/health"')
    return path


def _fields(inner: Section) -> dict[str, Any]:
    return inner.inner("body").items()


def check_contradictions(section: Section, table: dict[str, Any], replay: Replay) -> None:
    """Refuses settings that a scenario with requests cannot have."""
    for key in ("steps", "world_size"):
        if key in table:
            raise section.error(
                key, "is for a program of its own; a scenario with requests ends with the last one"
            )
    if replay.function is not None and "command" in table:
        raise section.error(
            "command", "and requests.function are both there; keep the one that is to be run"
        )
    if replay.url is not None and "command" not in table:
        raise section.error(
            "command", 'is missing; write what starts the server, such as: command = "serve.py"'
        )
    if PORT_NAME in table.get("matrix", {}):
        raise section.error("matrix", f"has {PORT_NAME!r}, which is a port that ullage chooses")


def check_replay(case: Case, section: Section) -> None:
    """Reads the requests of a case, and refuses those that cannot be sent."""
    replay = case.replay
    if replay is None:
        return
    inner = section.inner(REQUESTS)
    if not replay.users.isdecimal() or int(replay.users) < 1:
        example = "expected how many run at once, or a variable of the matrix, such as {users}"
        raise inner.error("concurrency", f"is {replay.users!r}; {example}")
    path = case.scenario.directory / replay.file
    try:
        requests = read_requests(path, replay.limit)
    except SpecError as error:
        raise inner.error("file", f": {error}") from None
    num_steps = len(list(in_parts(requests, int(replay.users))))
    if case.scenario.budget.growth_bytes is not None and num_steps < MIN_STEPS:
        raise section.error(
            "budget",
            f"limits growth, and {len(requests)} requests of {replay.users} at once are too few to "
            f"tell; {path.name} needs at least {(MIN_STEPS - 1) * int(replay.users) + 1}",
        )
    if replay.function is not None:
        _check_function(replay.function, case.scenario.directory, inner)
        return
    _check_server(case, requests, path.parent, inner)


def _check_server(
    case: Case, requests: tuple[Request, ...], directory: Path, inner: Section
) -> None:
    replay = case.replay
    url = replay.url if replay is not None and replay.url is not None else ""
    words = (*case.command, *case.env.values())
    if PORT in url and not any(PORT_NAME in variables_in(word) for word in words):
        raise inner.error(
            "url",
            f"has {PORT}, and neither the command nor env has it; write it where the server takes "
            f"its port, such as: --port {PORT}",
        )
    try:
        Endpoint.parse(url.replace(PORT, "1"))
    except SpecError as error:
        raise inner.error("url", f": {str(error).replace(':1/', f':{PORT}/')}") from None
    try:
        for request in requests:
            check_request(request, directory)
    except SpecError as error:
        raise inner.error("file", f": {error}") from None


def _check_function(text: str, directory: Path, inner: Section) -> None:
    """Refuses a function whose file is missing or does not define it."""
    match = _FUNCTION.fullmatch(text)
    if match is None:
        example = 'expected a file or module and a function, such as "serve.py:handle"'
        raise inner.error("function", f"is {text!r}; {example}")
    path = directory / match["source"]
    if path.suffix != ".py":
        return  # a module, which only its own interpreter can find
    try:
        tree = ast.parse(read_bounded(path))
    except FileNotFoundError:
        raise inner.error("function", f"is {text!r}, and there is no file {str(path)!r}") from None
    except (OSError, ValueError, SyntaxError) as error:
        message = f"is {text!r}, and {path.name} cannot be read: {error}"
        raise inner.error("function", message) from None
    names = _names_in(tree)
    name = match["name"].partition(".")[0]
    if name in names or "*" in names:
        return
    close = get_close_matches(name, names, n=1)
    meant = f"did you mean {close[0]!r}?" if close else "name a function of its top level"
    raise inner.error("function", f"is {text!r}, and {path.name} has no {name!r}; {meant}")


def _names_in(tree: ast.Module) -> set[str]:
    """Every name that a module may define anywhere."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return names
