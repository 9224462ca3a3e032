"""Models by what a log calls them: found on this machine, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ullage.facts.families.find import find_here


@pytest.mark.parametrize(
    "name",
    ["llama-3.1-8b", "meta-llama/Llama-3.1-8B", "models/llama-3.1-8b/", "x/Llama-3.1-8B-Instruct"],
)
def test_a_built_in_model_is_found_by_its_name_or_the_end_of_its_path(name: str) -> None:
    model = find_here(name)
    assert model is not None and model.config.fields["num_hidden_layers"] == 32


def test_a_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8}))
    model = find_here(str(tmp_path))
    assert model is not None and model.config.fields["hidden_size"] == 8
    assert find_here(str(tmp_path / "config.json")) is not None


def test_what_is_not_here_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("the network"))
    assert find_here("nobody/has-this") is None
    (tmp_path / "config.json").write_text("{")
    assert find_here(str(tmp_path)) is None
