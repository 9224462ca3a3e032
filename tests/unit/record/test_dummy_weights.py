"""Files that stand for weights that are not there, and what counts as there: without the libraries
that would read them.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from ullage.players.inside.weights import dummy_weights
from ullage.players.inside.weights.dummy_vision_weights import MadeUpVision
from ullage.players.inside.weights.dummy_weights import MadeUpWeights, write_hole

GIB = 2**30
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
NOTHING = cast(ModuleType, None)


def test_a_file_has_a_header_of_all_tensors_and_takes_no_space_for_their_numbers(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.safetensors"
    write_hole(path, {"a": ("BF16", (1024, 2**20)), "b": ("F8_E4M3", (3,)), "c": ("I64", ())})
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    assert header["a"] == {"dtype": "BF16", "shape": [1024, 2**20], "data_offsets": [0, 2 * GIB]}
    assert header["b"]["data_offsets"] == [2 * GIB, 2 * GIB + 3]
    assert header["c"]["data_offsets"] == [2 * GIB + 3, 2 * GIB + 11]
    assert size % 8 == 0
    assert path.stat().st_size == 8 + size + 2 * GIB + 11
    assert path.stat().st_blocks * 512 < 2**20


def test_files_are_those_of_the_index_or_of_4_gib(tmp_path: Path) -> None:
    tensors = dict.fromkeys("abc", ("F32", (GIB // 2,)))
    assert dummy_weights._shards(tensors, tmp_path) == {
        "model-00001-of-00002.safetensors": ["a", "b"],
        "model-00002-of-00002.safetensors": ["c"],
    }
    places = {"a": "1.safetensors", "b": "2.safetensors", "of another class": "2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert dummy_weights._shards(tensors, tmp_path) == {
        "1.safetensors": ["a"], "2.safetensors": ["b"],
    }  # fmt: skip


class Config:
    """A model's config of transformers."""

    @classmethod
    def from_pretrained(cls, _name: str, **_: object) -> Config:
        return cls()


class Model:
    config_class = Config


def test_weights_that_are_there_stay_and_a_pointer_of_git_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    weights = MadeUpWeights(NOTHING, tmp_path / "made", made.append)
    monkeypatch.setattr(weights, "_make", lambda _cls, _config, source, _name: source / "made")
    source = tmp_path / "model"
    source.mkdir()
    (source / "config.json").write_text("{}")
    (source / "model.safetensors").write_bytes(POINTER)
    assert weights._directory_for(Model, source, {}) == source / "made"
    assert len(weights._made) == 1
    assert weights._directory_for(Model, source, {"state_dict": {"a": 1}}) is None
    (source / "model.safetensors").write_bytes(b"numbers")
    assert weights._directory_for(Model, source, {}) is None


def load(
    place: tuple[str, Any], monkeypatch: pytest.MonkeyPatch, cached: str
) -> tuple[list[str], list[object]]:
    """What is said, and which models timm itself loads, of one whose weights are at a place."""
    hub = SimpleNamespace(
        try_to_load_from_cache=lambda _model, name: "/cache/it" if name == cached else None
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    loaded: list[object] = []
    said: list[str] = []
    original: Callable[..., None] = lambda model, *_, **__: loaded.append(model)  # noqa: E731
    builder = SimpleNamespace(
        load_pretrained=original, _resolve_pretrained_source=lambda _config: place
    )
    MadeUpVision(NOTHING, Path("/none"), said.append)._cover_timm(builder)
    value = SimpleNamespace(numel=lambda: 1000, element_size=lambda: 2)
    model = SimpleNamespace(state_dict=lambda: {"a": value, "b": value})
    builder.load_pretrained(model, pretrained_cfg={"architecture": "resnet18"})
    return said, loaded


def test_a_model_of_timm_keeps_its_first_weights_only_where_there_are_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said, loaded = load(("hf-hub", "timm/resnet18"), monkeypatch, cached="another file")
    assert said == [
        "the weights of resnet18 are not there and were made up: 2 tensors, 4,000 bytes"
    ]
    assert not loaded
    for place, cached in (
        (("hf-hub", "timm/resnet18"), "pytorch_model.bin"),
        (("hf-hub", ("timm/resnet18", "own.bin")), "own.bin"),
        (("file", "/models/resnet18"), ""),
    ):
        said, loaded = load(place, monkeypatch, cached)
        assert not said and len(loaded) == 1
