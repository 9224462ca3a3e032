"""Finds the arguments that a Triton kernel may write to, from its source."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

_HARMLESS = frozenset({"abs", "bool", "float", "int", "len", "max", "min", "print", "range"})
_LANGUAGE = "triton.language"


@functools.cache
def stored_parameters(function: Callable[..., Any]) -> frozenset[str] | None:
    """The parameters from which a function may compute an address that it stores to.

    Arguments of a call to a function that is not a kernel count, too. None: there is no source.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return None
    made_of: dict[str, set[str]] = {}
    stored: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in (name for target in targets for name in _names(target)):
                made_of.setdefault(name, set()).update(_names(node.value))
        elif isinstance(node, ast.For):
            for name in _names(node.target):
                made_of.setdefault(name, set()).update(_names(node.iter))
        elif isinstance(node, ast.Call):
            stored.update(_stored_by(node, function.__globals__))
    pending = list(stored)
    while pending:
        fresh = made_of.get(pending.pop(), set()) - stored
        stored |= fresh
        pending += fresh
    return frozenset(stored & set(inspect.signature(function).parameters))


def _stored_by(call: ast.Call, names: dict[str, Any]) -> Iterator[str]:
    function = call.func
    if isinstance(function, ast.Attribute):
        if function.attr in ("store", "scatter") or function.attr.startswith("atomic"):
            yield from _names(function.value)
            yield from _names(call.args[0] if call.args else call)
            return
        holder = names.get(function.value.id) if isinstance(function.value, ast.Name) else None
        if getattr(holder, "__name__", _LANGUAGE) == _LANGUAGE:  # or a method of a value
            return
    elif isinstance(function, ast.Name):
        if function.id in _HARMLESS:
            return
        inner: Any = getattr(names.get(function.id), "fn", None)
        stored = stored_parameters(inner) if inner is not None else None
        if stored is not None:
            arguments = dict(zip(inspect.signature(inner).parameters, call.args, strict=False))
            arguments |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
            for name in stored & arguments.keys():
                yield from _names(arguments[name])
            return
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        yield from _names(argument)


def _names(node: ast.AST | None) -> Iterator[str]:
    """The names in an expression, except those that it only loads a value from."""
    if isinstance(node, ast.Name):
        yield node.id
    elif node is not None and not _is_load(node):
        for child in ast.iter_child_nodes(node):
            yield from _names(child)


def _is_load(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "load"
    )
