"""A cache of Inductor that the user named and was not used is told where kernels were timed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ullage.log.model import Record
from ullage.search.runs.one import _unused_caches

NAME = "TORCHINDUCTOR_CACHE_DIR"


@pytest.fixture
def record() -> Callable[[int], Record]:
    return lambda num_timed: SimpleNamespace(num_timed=num_timed)  # type: ignore[return-value]


def job(**variables: str) -> Any:
    return SimpleNamespace(
        options=SimpleNamespace(variables=variables), program=SimpleNamespace(remarks=())
    )


def test_it_is_told_once_and_only_where_kernels_were_timed(
    record: Callable[[int], Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(NAME, raising=False)
    assert list(_unused_caches(job(), [(record(3), None)])) == []
    assert list(_unused_caches(job(**{NAME: "/mine"}), [(record(0), None)])) == []
    (told,) = _unused_caches(job(**{NAME: "/mine"}), [(record(3), None), (record(2), None)])
    assert "/mine" in told
    monkeypatch.setenv(NAME, "/of-the-shell")
    (told,) = _unused_caches(job(), [(record(1), None)])
    assert "/of-the-shell" in told
