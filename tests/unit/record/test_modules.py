"""Scopes of modules: their names, and a bound where models come and go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ullage.players.inside.owners import modules as modules_module
from ullage.players.inside.owners.modules import Modules


class Layer:
    """As much of a module as the walk looks at."""

    def __init__(self, **children: Layer) -> None:
        self._modules = children

    def parameters(self) -> Any:
        return iter([object()])


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    library = SimpleNamespace(enter_scope=lambda _number: None)
    monkeypatch.setattr(modules_module, "library", library)
    monkeypatch.setattr(modules_module, "live_owners", lambda _torch: ([], []))
    return SimpleNamespace()


def test_models_without_end_have_as_many_names_as_are_allowed(torch: Any) -> None:
    modules = Modules(torch, max_scopes=16)
    first = Layer(up=Layer(), down=Layer())
    modules.enter(first)
    modules.note_call(first)
    scopes = []
    for _ in range(100):
        model = Layer(up=Layer(), down=Layer())
        scopes.append(modules.enter(model))
        modules.note_call(model)
        list(modules.walk(model))
    names = modules.names()
    assert len(names) == 16
    assert names[0] == "Layer" and "Layer#2.up" in names and names[-1] == "others"
    assert scopes[-1] == 15 and modules.has_others
    # The models are gone, and nothing is left of them but their names.
    del model
    assert sorted(modules._numbers.values()) == [0, 1, 2]
    assert len(modules._root_of) == 1


def test_without_a_bound_each_model_has_its_names(torch: Any) -> None:
    modules = Modules(torch)
    models = [Layer(up=Layer()) for _ in range(50)]
    for model in models:
        modules.enter(model)
    assert len(set(modules.names())) == 100 and not modules.has_others
