"""The values that an interactive session holds, a notebook above all: the variables of its cells,
their outputs, and the last exception.

IPython keeps the value of a cell as Out[n], _n, _, in a dict of hidden names and in its display
hook, so that `del Out[3], _3` frees nothing. The exception that ended a cell is kept with all the
variables of its frames: as sys.last_traceback, sys.last_value (and sys.last_exc from Python 3.12
on), by IPython's printer of tracebacks and in the result of the last cell.

    variables()    outputs()    last_errors()     each [(name, place, value)]

IPython is asked where the program has imported it, and never imported here.
"""

from __future__ import annotations

import builtins
import contextlib
import re
import sys
from collections.abc import Callable
from typing import Any

from ullage.ground.protocol.holder_chains import HANDLED, MAIN

Root = tuple[str, str, Any]  # name, place, value
_TYPED = ("<ipython-input-", "<stdin>", "<input>", "<console>", "<python-input-")
_OF_KERNEL = "ipykernel_"  # /tmp/ipykernel_4242/1234.py is a cell
_HISTORY = ("Out", "_oh")
_RESULT = re.compile(r"_{1,3}|_\d+")
_OF_SHELL = re.compile(r"In|_[io]h|_dh|Out|_i{1,3}|_i\d+")
_LAST = ("last_traceback", "last_exc", "last_value")


def shell() -> Any | None:
    """IPython's shell, in a process that has one."""
    module = sys.modules.get("IPython")
    find = getattr(module, "get_ipython", None)
    try:
        return None if find is None else find()
    except Exception:  # half imported
        return None


def is_typed(filename: str) -> bool:
    """True if the code object of such a file was typed into a session, or is a cell."""
    return filename.startswith(_TYPED) or _OF_KERNEL in filename


def cell_name(filename: str) -> str | None:
    """The cell that a code object comes from, such as "cell 5"; None: it comes from a file."""
    if _OF_KERNEL not in filename and not filename.startswith("<"):
        return None
    compiler = getattr(shell(), "compile", None)
    try:
        name = compiler.format_code_name(filename)[1] if compiler is not None else ""
    except (AttributeError, TypeError):  # not one of its cells, or an IPython before 8.0
        name = ""
    number = re.fullmatch(r"In\[(\d+)\]", str(name))
    return f"cell {number[1]}" if number else None


def variables() -> list[Root]:
    """The variables of a session: those of a main module without a file, or of the shell."""
    hidden = _hidden()  # exit, quit and the like, which lead to the shell
    return [
        (name, MAIN, value)
        for namespace in _namespaces()
        for name, value in list(namespace.items())
        if not (_histories(namespace) and _is_of_shell(name))
        if hidden.get(name, hidden) is not value
    ]


def own_objects() -> list[object]:
    """The shell and its namespaces: what is found through them has a shorter name."""
    here, spaces = shell(), _namespaces()
    histories = [history for space in spaces for history in _histories(space)]
    return [*spaces, *histories, *([] if here is None else [here, _hidden()])]


def _hidden() -> dict[str, Any]:
    hidden = getattr(shell(), "user_ns_hidden", None)
    return hidden if isinstance(hidden, dict) else {}


def _namespaces() -> list[dict[str, Any]]:
    main = getattr(sys.modules.get(MAIN), "__dict__", {})
    spaces = [] if isinstance(main.get("__file__"), str) else [main]
    own = getattr(shell(), "user_ns", None)
    return [*spaces, own] if isinstance(own, dict) and own is not main else spaces


def _histories(namespace: dict[str, Any]) -> list[dict[Any, Any]]:
    values = [namespace.get(name) for name in _HISTORY]
    return [value for value in values if isinstance(value, dict)]


def _is_of_shell(name: object) -> bool:
    return type(name) is str and bool(_RESULT.fullmatch(name) or _OF_SHELL.fullmatch(name))


def outputs() -> list[Root]:
    """The names by which the session keeps the values of cells: each has to go before one is free.

    Of several names of one value the first is the one to show: Out[3] before _3 and _.
    """
    roots: list[Root] = []
    spaces = [space for space in _namespaces() if _histories(space)]
    for space in spaces:
        for history in _histories(space):
            roots += [(f"Out[{key}]", "", value) for key, value in list(history.items())]
    for space in spaces:
        roots += _results(space, "{}")
    here = shell()
    roots += _results(_hidden(), "get_ipython().user_ns_hidden[{!r}]")
    hook = getattr(getattr(here, "displayhook", None), "__dict__", {})
    roots += _results(hook, "get_ipython().displayhook.{}")
    result = getattr(getattr(here, "last_execution_result", None), "result", None)
    roots.append(("get_ipython().last_execution_result.result", "", result))
    roots.append(("builtins._", "", getattr(builtins, "_", None)))
    return roots


def _results(space: dict[str, Any], form: str) -> list[Root]:
    return [
        (form.format(name), "", value)
        for name, value in sorted(
            (item for item in list(space.items()) if type(item[0]) is str), key=_longest_first
        )
        if _RESULT.fullmatch(name)
    ]


def _longest_first(item: tuple[str, Any]) -> tuple[bool, str]:
    """_3 says more than _."""
    return not item[0][-1].isdigit(), item[0]


def last_errors() -> list[Root]:
    """The exceptions that the interpreter and the shell still have, and the one being handled."""
    roots: list[Root] = [(f"sys.{name}", "", getattr(sys, name, None)) for name in _LAST]
    here = shell()
    printer = getattr(here, "InteractiveTB", None)
    roots.append(("get_ipython().InteractiveTB.tb", "", getattr(printer, "tb", None)))
    result = getattr(here, "last_execution_result", None)
    for name in ("error_in_exec", "error_before_exec"):
        value = getattr(result, name, None)
        roots.append((f"get_ipython().last_execution_result.{name}", "", value))
    roots.append((HANDLED, "", sys.exception()))
    return [root for root in roots if root[2] is not None]


class CellHook:
    """Calls a function after each cell, where IPython's shell is there, until it is removed.

    A thing of its own, so that the same bound method is registered and taken out again.
    """

    def __init__(self, end_cell: Callable[[], None]) -> None:
        self._end_cell = end_cell
        self._events: Any = None

    def install(self) -> None:
        """Begins."""
        self._events = getattr(shell(), "events", None)
        if self._events is not None:
            self._events.register("post_run_cell", self._run)

    def remove(self) -> None:
        """Ends; it may have ended before."""
        if self._events is not None:
            with contextlib.suppress(ValueError):  # the session has taken it out itself
                self._events.unregister("post_run_cell", self._run)
            self._events = None

    def _run(self, _result: object) -> None:
        self._end_cell()
