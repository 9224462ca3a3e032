"""Which arguments a kernel may write to, read off its source."""

from __future__ import annotations

import types
from typing import Any

import pytest

from ullage.players.inside.values.kernels import stored_parameters

tl: Any = types.SimpleNamespace(__name__="triton.language")


def plain(a_ptr: Any, b_ptr: Any, count: Any) -> None:
    block = tl.arange(0, 4)
    values = tl.load(a_ptr + block, mask=block < count)
    tl.store(b_ptr + block, values)


def by_an_index(a_ptr: Any, index_ptr: Any) -> None:
    row = tl.load(index_ptr)
    tl.store(a_ptr + row, 1)


def by_a_moved_address(a_ptr: Any, b_ptr: Any, count: Any) -> None:
    row_ptr = a_ptr
    for _ in range(count):
        row_ptr += tl.load(b_ptr)
        tl.atomic_add(row_ptr, 1)


def by_another(a_ptr: Any, b_ptr: Any) -> None:
    inner(b_ptr, tl.load(a_ptr))


def by_an_unknown(a_ptr: Any, b_ptr: Any) -> None:
    tl.store(a_ptr, elsewhere(b_ptr))


def _inner(target_ptr: Any, value: Any) -> None:
    tl.store(target_ptr, value)


inner: Any = types.SimpleNamespace(fn=_inner)


def elsewhere(pointer: Any) -> Any:
    return pointer


@pytest.mark.parametrize(
    ("function", "stored", "only_read"),
    [
        (plain, {"b_ptr"}, {"a_ptr", "count"}),
        (by_an_index, {"a_ptr"}, {"index_ptr"}),
        (by_a_moved_address, {"a_ptr"}, {"b_ptr"}),
        (by_another, {"b_ptr"}, {"a_ptr"}),
        (by_an_unknown, {"a_ptr", "b_ptr"}, set()),
    ],
)
def test_what_is_stored_to_is_found(function: Any, stored: set[str], only_read: set[str]) -> None:
    parameters = stored_parameters(function)
    assert parameters is not None
    assert stored <= parameters
    assert not only_read & parameters


def test_without_a_source_nobody_knows() -> None:
    namespace: dict[str, Any] = {}
    exec("def made(a_ptr): pass", namespace)
    assert stored_parameters(namespace["made"]) is None
