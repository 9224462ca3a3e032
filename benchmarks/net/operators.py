"""Small faults that a source text could have: what a mutation operator makes of one line.

    edits_of("if a < b:\n    a += 1\n")
    # line 1: if a < b:   ->  if a <= b:      comparison
    # line 1: if a < b:   ->  if not (a < b):  branch
    # line 2: a += 1      ->  a += 2          constant
    # line 2: a += 1      ->  pass            dropped statement

The rest of the file stays byte for byte. Texts are left alone (they are messages, names, help), and
so is what declares and does not compute: annotations, decorators, `__all__`, docstrings, imports.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

_SWAPPED: Final[Mapping[type[ast.AST], tuple[bytes, bytes]]] = {
    ast.Lt: (b"<", b"<="), ast.LtE: (b"<=", b"<"), ast.Gt: (b">", b">="), ast.GtE: (b">=", b">"),
    ast.Eq: (b"==", b"!="), ast.NotEq: (b"!=", b"=="), ast.Add: (b"+", b"-"), ast.Sub: (b"-", b"+"),
}  # fmt: skip
# `+` also joins these, and `-` would only raise a TypeError that any test meets.
_JOINED = (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple)
_DROPPED = (ast.AugAssign, ast.Raise, ast.Break, ast.Continue, ast.Delete)


class Operator(Enum):
    """A kind of fault."""

    CONSTANT = "constant"
    COMPARISON = "comparison"
    BRANCH = "branch"
    ARITHMETIC = "arithmetic"
    DROPPED = "dropped statement"


@dataclass(frozen=True, slots=True)
class Edit:
    """A fault in one line.

    Attributes:
        operator: what makes it.
        line: its number, from 1.
        before: the line without its indentation.
        after: what takes its place.
    """

    operator: Operator
    line: int
    before: str
    after: str


def edits_of(text: str) -> list[Edit]:
    """Every fault that the operators can make in a module."""
    lines, edits = text.encode().split(b"\n"), []  # columns of the tree count bytes
    for node in _computing(ast.parse(text)):
        fault = _fault(node)
        if fault is not None and fault.span[0] == fault.span[2]:
            number, begin, _, end = fault.span
            old = lines[number - 1]
            new = old[:begin] + fault.change(old[begin:end]) + old[end:]
            edits.append(Edit(fault.operator, number, old.decode().strip(), new.decode().strip()))
    return edits


def apply_edit(text: str, line: int, before: str, after: str) -> str | None:
    """The module with the fault, at the nearest line that still reads so; None: there is none."""
    lines = text.split("\n")
    places = [place for place, found in enumerate(lines) if found.strip() == before]
    if not places:
        return None
    place = min(places, key=lambda place: abs(place + 1 - line))
    lines[place] = lines[place].replace(before, after, 1)
    return "\n".join(lines)


class _Fault(NamedTuple):
    operator: Operator
    span: tuple[int, int, int, int]  # the line and column of its begin, and of its end
    change: Callable[[bytes], bytes]


def _fault(node: ast.expr | ast.stmt) -> _Fault | None:
    """What an operator makes of a node; None: no operator is for it."""
    match node:
        case ast.If(test=test) | ast.While(test=test):
            return _Fault(Operator.BRANCH, _span(test, test), lambda old: b"not (" + old + b")")
        case ast.Constant(value=bool() | int() | float() as value):
            return _Fault(Operator.CONSTANT, _span(node, node), lambda _: _other(value))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _SWAPPED:
            return _Fault(Operator.COMPARISON, _span(left, right), _swap(left, op, right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _SWAPPED:
            if not (_joins(left) or _joins(right)):
                return _Fault(Operator.ARITHMETIC, _span(left, right), _swap(left, op, right))
        case _ if _can_be_dropped(node):
            return _Fault(Operator.DROPPED, _span(node, node), lambda _: b"pass")
    return None


def _span(first: ast.expr | ast.stmt, last: ast.expr | ast.stmt) -> tuple[int, int, int, int]:
    end_line, end = last.end_lineno or 0, last.end_col_offset or 0
    return first.lineno, first.col_offset, end_line, end


def _swap(left: ast.expr, op: ast.AST, right: ast.expr) -> Callable[[bytes], bytes]:
    """Another operator between two operands, with the spaces and brackets that are there."""

    def change(old: bytes) -> bytes:
        begin, end = (
            (left.end_col_offset or 0) - left.col_offset, right.col_offset - left.col_offset
        )  # fmt: skip
        return old[:begin] + old[begin:end].replace(*_SWAPPED[type(op)], 1) + old[end:]

    return change


def _computing(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """The nodes that compute: not what declares, nor what makes a text."""
    match node:
        case ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return
        case ast.expr() | ast.stmt():
            yield node
    left_out = {"annotation", "returns", "decorator_list", "msg", "exc", "type_params"}
    for field, value in ast.iter_fields(node):
        if field not in left_out:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _computing(child)


def _other(value: float) -> bytes:
    """Another constant of the same type: a number and one, a fraction twice."""
    if isinstance(value, bool):
        other: float = not value
    else:
        other = value + 1 if isinstance(value, int) or not value else value * 2
    return repr(other).encode()


def _joins(node: ast.expr) -> bool:
    return isinstance(node, _JOINED) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _can_be_dropped(node: ast.expr | ast.stmt) -> bool:
    """Whether the function goes on without a statement. Without a name's first value it would end
    with a NameError, which any test meets.
    """
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Return(value=None):
            return True
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
    return isinstance(node, _DROPPED)
