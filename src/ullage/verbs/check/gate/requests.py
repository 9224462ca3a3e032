"""The table `requests` of a scenario: a file of requests, and the function or server that answers
them.

    [scenario.chat.requests]
    file = "requests.jsonl"
    function = "serve.py:handle"        # or url = "http://127.0.0.1:{port}/v1/completions"
    concurrency = 8

    check_replay(case)                  # what can be known to be wrong before anything runs
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ullage.ground.errors import SpecError
from ullage.ground.parsing import read_bounded
from ullage.ground.protocol.plain import Misfit
from ullage.log.growth import MIN_STEPS
from ullage.players.inside.requests.requests import Request, in_parts, read_requests
from ullage.players.phantom.http_requests import PORT, Endpoint, check_request
from ullage.verbs.check.gate.scenario import PORT_NAME, Case, Replay, variables_in

REQUESTS = "requests"
_FUNCTION = re.compile(r"(?P<source>.+\.py|[\w.]+):(?P<name>\w+(\.\w+)*)")
_SERVER_ONLY = ("ready", "ready_timeout_s", "timeout_s", "body")
_EXAMPLE_URL = f"http://127.0.0.1:{PORT}/v1/completions"


def check_contradictions(replay: Replay | None, table: Mapping[str, Any]) -> None:
    """Refuses settings that a scenario with requests cannot have."""
    if replay is None:
        return
    if (replay.function is None) == (replay.url is None):
        raise Misfit(
            'or url says who answers, and one of them is needed: function = "serve.py:handle", or '
            f'url = "{_EXAMPLE_URL}" of the server that the command starts',
            REQUESTS,
            "function",
        )
    for key in _SERVER_ONLY:
        if replay.url is None and key in table[REQUESTS]:
            raise Misfit("is for a server, and a function is called; leave it out", REQUESTS, key)
    for key in ("steps", "world_size"):
        if key in table:
            raise Misfit(
                "is for a program of its own; a scenario with requests ends with the last one", key
            )
    if replay.function is not None and "command" in table:
        raise Misfit(
            "and requests.function are both there; keep the one that is to be run", "command"
        )
    if replay.url is not None and "command" not in table:
        raise Misfit(
            'is missing; write what starts the server, such as: command = "serve.py"', "command"
        )
    if PORT_NAME in table.get("matrix", {}):
        raise Misfit(f"has {PORT_NAME!r}, which is a port that ullage chooses", "matrix")


def check_replay(case: Case) -> None:
    """Reads the requests of a case, and refuses those that cannot be sent."""
    replay = case.scenario.replay
    if replay is None:
        return
    if not replay.users.isdecimal() or int(replay.users) < 1:
        example = "expected how many run at once, or a variable of the matrix, such as {users}"
        raise Misfit(f"is {replay.users!r}; {example}", REQUESTS, "concurrency")
    path = case.scenario.directory / replay.file
    try:
        requests = read_requests(path, replay.limit)
    except SpecError as error:
        raise Misfit(f": {error}", REQUESTS, "file") from None
    num_steps = len(list(in_parts(requests, int(replay.users))))
    if case.scenario.budget.growth_bytes is not None and num_steps < MIN_STEPS:
        raise Misfit(
            f"limits growth, and {len(requests)} requests of {replay.users} at once are too few to "
            f"tell; {path.name} needs at least {(MIN_STEPS - 1) * int(replay.users) + 1}",
            "budget",
        )
    if replay.function is not None:
        _check_function(replay.function, case.scenario.directory)
        return
    _check_server(case, requests, path.parent)


def _check_server(case: Case, requests: tuple[Request, ...], directory: Path) -> None:
    replay = case.scenario.replay
    url = replay.url if replay is not None and replay.url is not None else ""
    words = (*case.scenario.command, *case.scenario.env.values())
    if PORT in url and not any(PORT_NAME in variables_in(word) for word in words):
        raise Misfit(
            f"has {PORT}, and neither the command nor env has it; write it where the server takes "
            f"its port, such as: --port {PORT}",
            REQUESTS,
            "url",
        )
    try:
        Endpoint.parse(url.replace(PORT, "1"))
    except SpecError as error:
        raise Misfit(f": {str(error).replace(':1/', f':{PORT}/')}", REQUESTS, "url") from None
    try:
        for request in requests:
            check_request(request, directory)
    except SpecError as error:
        raise Misfit(f": {error}", REQUESTS, "file") from None


def _check_function(text: str, directory: Path) -> None:
    """Refuses a function whose file is missing or does not define it."""
    match = _FUNCTION.fullmatch(text)
    if match is None:
        example = 'expected a file or module and a function, such as "serve.py:handle"'
        raise Misfit(f"is {text!r}; {example}", REQUESTS, "function")
    path = directory / match["source"]
    if path.suffix != ".py":
        return  # a module, which only its own interpreter can find
    try:
        tree = ast.parse(read_bounded(path))
    except FileNotFoundError:
        raise Misfit(
            f"is {text!r}, and there is no file {str(path)!r}", REQUESTS, "function"
        ) from None
    except (OSError, ValueError, SyntaxError) as error:
        message = f"is {text!r}, and {path.name} cannot be read: {error}"
        raise Misfit(message, REQUESTS, "function") from None
    names = _names_in(tree)
    name = match["name"].partition(".")[0]
    if name in names or "*" in names:
        return
    close = get_close_matches(name, names, n=1)
    meant = f"did you mean {close[0]!r}?" if close else "name a function of its top level"
    raise Misfit(f"is {text!r}, and {path.name} has no {name!r}; {meant}", REQUESTS, "function")


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
