"""Modules are met as they arrive, whoever else waits for them and whoever finds them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from ullage.players.inside.import_hooks import on_import


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that nobody has imported."""
    name = f"arrives_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text("loads = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_two_that_wait_for_one_module_are_both_called(module: str) -> None:
    calls: list[str] = []
    on_import(module, lambda loaded: calls.append(f"first {loaded.loads}"))
    on_import(module, lambda loaded: calls.append(f"second {loaded.loads}"))
    loaded = importlib.import_module(module)
    assert sorted(calls) == ["first 1", "second 1"]
    assert type(loaded.__loader__).__name__ == "SourceFileLoader"
    assert loaded.__spec__ is not None and loaded.__spec__.loader is loaded.__loader__


def test_a_module_that_another_finder_finds_is_met(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As an editable installation of a package does it.
    elsewhere = tmp_path / "elsewhere.py"
    (tmp_path / f"{module}.py").rename(elsewhere)

    class Finder:
        def find_spec(self, name: str, _path: object, _target: object = None) -> object:
            return (
                importlib.util.spec_from_file_location(name, elsewhere) if name == module else None
            )

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    calls: list[int] = []
    on_import(module, lambda loaded: calls.append(loaded.loads))
    assert importlib.util.find_spec(module) is not None
    assert not calls
    importlib.import_module(module)
    assert calls == [1]
